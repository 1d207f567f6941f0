"""nginx with the shipped file, in front of servers on this machine."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx

from doubles.lifecycles import LIMIT_S

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
OPENSSL = shutil.which("openssl")
SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx" / "nunatak.conf"
HOST = "nunatak.example"
BUFFERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Folders of nginx; the folders of an installed package belong to root."""


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


@contextlib.contextmanager
def proxy(folder: Path, *upstreams: str) -> Generator[httpx.Client]:
    """Run nginx before two processes; yields a client that trusts its certificate."""
    folder.mkdir()
    port, certificate, key = free_port(), folder / "tls.crt", folder / "tls.key"
    names = f"subjectAltName=DNS:{HOST},IP:127.0.0.1"
    run(
        *(OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2),
        *("-subj", f"/CN={HOST}", "-addext", names, "-keyout", key, "-out", certificate),
    )
    first, second = upstreams
    changes = {
        "server 127.0.0.1:8080": f"server {first}",
        "server 127.0.0.1:8081": f"server {second}",
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "/etc/nunatak/tls.crt": str(certificate),
        "/etc/nunatak/tls.key": str(key),
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
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}",
            headers={"host": HOST},
            verify=ssl.create_default_context(cafile=certificate),
            timeout=LIMIT_S,
        ) as client:
            yield client
    finally:
        run(*nginx, "-s", "stop")
