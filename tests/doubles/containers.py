"""The container image: built by buildah on a base of Debian's packages, and started by buildah."""

import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "container"
TOOLS = ("buildah", "debootstrap")
BASE, IMAGE = "localhost/nunatak-base", "localhost/nunatak"
BASE_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"


def missing_tools() -> list[str]:
    """Return the programs that a build needs and that are not installed."""
    return [it for it in TOOLS if shutil.which(it) is None]


@dataclass(frozen=True, slots=True)
class Images:
    """A store of images and containers in a folder of its own."""

    folder: Path

    def call(self, *arguments: str, **options: Any) -> str:  # noqa: ANN401 - of subprocess
        """Run buildah, and return its output; an error is raised with the last lines."""
        result = subprocess.run(  # noqa: S603 - our own arguments
            self.command(*arguments), check=False, capture_output=True, text=True, **options
        )
        assert result.returncode == 0, "\n".join((result.stdout + result.stderr).splitlines()[-30:])
        return result.stdout.strip()

    def command(self, *arguments: str) -> list[str]:
        """Return a command of buildah for this store."""
        store = ("--root", str(self.folder / "store"), "--runroot", str(self.folder / "run"))
        return ["buildah", *store, *arguments]

    def make_base(self) -> None:
        """Make the base image out of Debian's packages."""
        system = self.folder / "system"
        options = ("--variant=minbase", f"--include={BASE_PACKAGES}")
        subprocess.run(  # noqa: S603 - our own arguments
            ["debootstrap", *options, "bookworm", str(system)],  # noqa: S607 - found on the path
            check=True,
            stdout=subprocess.DEVNULL,
        )
        container = self.call("from", "scratch")
        self.call("add", "--quiet", container, str(system), "/")
        self.call("commit", "--rm", "--quiet", container, BASE)
        shutil.rmtree(system)

    def build(self) -> None:
        """Build the shipped file. pip in the build uses the settings of pip on this machine."""
        self.call(
            *("build", "--isolation", "chroot", "--network", "host", "--pull-never"),
            # Other formats than Docker's have no health check.
            *("--format", "docker", "--build-arg", f"BASE={BASE}", "--tag", IMAGE),
            *("--file", str(DEPLOY / "Dockerfile")),
            *("--ignorefile", str(DEPLOY / "Dockerfile.dockerignore")),
            *(f"--volume={source}:{target}:ro" for source, target in self._settings_of_pip()),
            str(ROOT),
        )

    def configuration(self) -> dict[str, Any]:
        """Return what the image says about its start."""
        described = json.loads(self.call("inspect", "--type", "image", IMAGE))
        return described["Docker"]["config"]

    @contextlib.contextmanager
    def started(
        self, *arguments: str, volumes: Mapping[Path, str], **settings: object
    ) -> Generator["subprocess.Popen[str]"]:
        """Start the image with its entry point, as its own user; its log is `stdout`."""
        described = self.configuration()
        container = self.call("from", "--pull-never", IMAGE)
        command = self.command(
            *("run", "--isolation", "chroot", "--network", "host"),
            *(f"--env=NUNATAK_{name.upper()}={value}" for name, value in settings.items()),
            *(f"--volume={source}:{target}" for source, target in volumes.items()),
            *(container, "--", *described["Entrypoint"], *(arguments or described["Cmd"])),
        )
        with subprocess.Popen(  # noqa: S603 - our own arguments
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            # A server blocks on a pipe that nobody reads.
            reading = threading.Thread(target=lambda: list(process.stdout or ()), daemon=True)
            reading.start()
            try:
                yield process
            finally:
                process.terminate()
                process.wait(timeout=60)
                self.call("rm", container)

    def remove(self) -> None:
        """Remove all images and containers."""
        self.call("rm", "--all")
        self.call("rmi", "--all", "--force")

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
