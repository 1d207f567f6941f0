"""The shipped container file is built and started as in a pod, answers, and drains."""

import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from doubles.access import add_key
from doubles.proxies import free_port
from doubles.tasks import LABELS, logits_alone, publish_tiny_task
from nunatak_model import load_backbone
from nunatak_registry import Registry

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "container"
TOOLS = ("podman", "runc", "debootstrap")
BASE, IMAGE = "localhost/nunatak-base", "localhost/nunatak"
BASE_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
# A sandbox may forbid to raise the limits to those that the engines give by default.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
BUILD_LIMIT_S, START_LIMIT_S = 3000, 300
MAX_BYTES = 900_000_000
"""Of an image without CUDA."""
TEXT = "where is my parcel?"
USER = 10001
LEFT_OUT = [f"--exclude=./{it}/*" for it in ("var/cache/apt", "var/lib/apt/lists")] + [
    f"--exclude=./usr/share/{it}/*" for it in ("doc", "locale", "man")
]
"""What the slim images of Debian leave out too."""


@functools.cache
def has_docker() -> bool:
    """Whether a daemon of docker answers, which then also fetches the base image."""
    command = [shutil.which("docker") or "false", "info"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - our own


def missing_tools() -> list[str]:
    """Return the programs that a build needs and that are not installed."""
    return [] if has_docker() else [it for it in TOOLS if shutil.which(it) is None]


@dataclass(frozen=True, slots=True)
class Images:
    """Images and containers of docker; or of podman, in a folder of their own."""

    folder: Path
    state: str
    """Folder of what runs: podman takes no path of more than 50 characters."""

    def call(self, *arguments: str) -> str:
        """Run the engine, and return its output; an error is raised with the last lines."""
        result = subprocess.run(  # noqa: S603 - our own arguments
            [*self._engine(), *arguments], check=False, capture_output=True, text=True
        )
        assert result.returncode == 0, "\n".join((result.stdout + result.stderr).splitlines()[-30:])
        return result.stdout.strip()

    def build(self) -> None:
        """Build the shipped file. The index of pip, and for podman its settings, are those here."""
        index = os.environ.get("PIP_EXTRA_INDEX_URL")
        common = (
            *("build", "--network", "host", "--tag", IMAGE, "--file", str(DEPLOY / "Dockerfile")),
            *(("--build-arg", f"TORCH_INDEX={index}") if index else ()),
        )
        if has_docker():
            self.call(*common, str(ROOT))
            return
        self._make_base()
        self.call(
            *(*common, "--build-arg", f"BASE={BASE}", "--pull-never", "--layers=false"),
            # Other formats than Docker's have no health check.
            *("--isolation", "chroot", "--format", "docker"),
            *("--ignorefile", str(DEPLOY / "Dockerfile.dockerignore")),
            *(f"--volume={source}:{target}:ro" for source, target in self._settings_of_pip()),
            str(ROOT),
        )

    def described(self) -> dict[str, Any]:
        """Return what the engine says about the image, with `Healthcheck` as podman places it."""
        found = json.loads(self.call("image", "inspect", IMAGE))[0]
        return {"Healthcheck": found["Config"].get("Healthcheck"), **found}

    @contextlib.contextmanager
    def started(self, *, volumes: Mapping[Path, str], **settings: object) -> Generator[str]:
        """Start the image as a pod does, with a root that is read-only; yields the container."""
        name = self.call(
            *("run", "--detach", "--network", "host", "--read-only", "--tmpfs", "/tmp", *LIMITS),  # noqa: S108 - in the container
            *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *(f"--env=NUNATAK_{name.upper()}={value}" for name, value in settings.items()),
            *(f"--volume={source}:{target}" for source, target in volumes.items()),
            IMAGE,
        )
        try:
            yield name
        except BaseException:
            print(self.call("logs", name))  # noqa: T201 - shown with the failure
            raise
        finally:
            self.call("rm", "--force", name)

    def save(self, folder: Path) -> None:
        """Write the image into a folder, as an archive with the name of the release."""
        name = f"nunatak:{version('nunatak')}"
        archive = folder / f"{name.replace(':', '-')}-image-{platform.machine()}.tar"
        folder.mkdir(parents=True, exist_ok=True)
        self.call("tag", IMAGE, name)
        self.call("save", "--output", str(archive), name)
        subprocess.run(["gzip", "--force", archive], check=True)  # noqa: S603, S607 - found on the path

    def remove(self) -> None:
        """Remove the images."""
        self.call("rmi", "--force", IMAGE, *(() if has_docker() else (BASE,)))

    def _engine(self) -> list[str]:
        if has_docker():
            return ["docker"]
        store = ("--root", str(self.folder / "store"), "--runroot", self.state)
        return ["podman", *store, "--runtime", "runc", "--cgroup-manager", "cgroupfs"]

    def _make_base(self) -> None:
        system, archive = self.folder / "system", self.folder / "system.tar"
        for command in (
            ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", system],
            ["tar", "--directory", system, *LEFT_OUT, "-cf", archive, "."],
        ):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
        self.call("import", str(archive), BASE)
        shutil.rmtree(system)
        archive.unlink()

    def _settings_of_pip(self) -> list[tuple[str, str]]:
        """Return the files and folders that pip needs in the build, and their places there."""
        listed = subprocess.run(
            ["pip", "config", "list"],  # noqa: S607 - found on the path
            check=True,
            capture_output=True,
            text=True,
        )
        lines = (it.partition("=") for it in listed.stdout.splitlines())
        values = {name.rpartition(".")[2]: value.strip("'\"") for name, _, value in lines}
        wanted = {name: values[name] for name in ("find-links", "cert") if name in values}
        path = self.folder / "pip.conf"
        path.write_text(
            "[global]\n" + "".join(f"{name} = {value}\n" for name, value in wanted.items())
        )
        places = [it for value in wanted.values() for it in value.split() if it.startswith("/")]
        return [(str(path), "/etc/pip.conf"), *((it, it) for it in places)]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_LIMIT_S),
    pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {missing_tools()}"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Generator[Images]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as state:
        made = Images(tmp_path_factory.mktemp("images"), state)
        made.build()
        yield made
        if folder := os.environ.get("NUNATAK_SAVE_IMAGE"):
            made.save(Path(folder))
        made.remove()


def test_the_image_says_how_it_runs_and_is_small(images: Images) -> None:
    described = images.described()

    assert described["Config"]["User"] == str(USER)
    assert described["Healthcheck"]["Test"][0] == "CMD"
    assert described["Size"] <= MAX_BYTES


def test_a_container_with_a_read_only_root_answers_as_its_own_user_and_drains(
    images: Images, tmp_path: Path
) -> None:
    backbone = load_backbone("minilm")
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, backbone, task="tone")
        registry.promote("tone", "prod", 1)
    key = add_key(tmp_path / "keys.json", "caller")
    for path in (tmp_path, *tmp_path.rglob("*")):
        # The user of the container has another number than that of the test.
        path.chmod(0o777 if path.is_dir() else 0o644 if path.suffix == ".json" else 0o666)
    (expected,) = logits_alone(backbone, [TEXT])
    port = free_port()
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    path = "/v1/tasks/tone/predict"

    with (
        images.started(
            volumes={tmp_path / "registry": "/var/lib/nunatak/registry", tmp_path: "/etc/nunatak"},
            port=port,
            api_keys_file="/etc/nunatak/keys.json",
            compute_threads=1,
            drain_delay_s=5,
        ) as name,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        wait_until(client, ready=True)
        health = images.described()["Healthcheck"]["Test"][1:]
        images.call("exec", name, *(it.replace("8080", str(port)) for it in health))
        refused = client.post(path, json=body)
        answer = client.post(path, json=body, headers=key).json()
        server = psutil.Process(int(images.call("inspect", "--format", "{{.State.Pid}}", name)))
        user = server.uids().real

        images.call("kill", "--signal", "TERM", name)
        wait_until(client, ready=False)
        last = client.post(path, json=body, headers=key)
        ended = images.call("wait", name)

    given = {it["label"]: it["score"] for it in answer["outputs"]}
    assert refused.status_code == 401
    assert given == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-4)
    assert user == USER
    assert last.json()["outputs"] == answer["outputs"]
    assert ended == "0"


def wait_until(client: httpx.Client, *, ready: bool) -> None:
    """Return once the server says that it is ready, or that it is not any more."""
    ends_at = time.monotonic() + START_LIMIT_S
    while True:
        try:
            if client.get("/readyz").is_success == ready:
                return
        except httpx.TransportError:
            assert ready, "the server ended before it said that it drains"
        assert time.monotonic() < ends_at, "the server in the container is not ready"
        time.sleep(0.2)
