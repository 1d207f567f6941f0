"""Builds the files of a release: `python -m release.build`, into `dist`.

First the pinned versions are audited (`release.audit`). Without a network, `--without-audit` builds
files that must not be published. The files are the sdist and the wheel of `nunatak`, the wheel of
`nunatak-ops` for this platform, the npm package, the pinned versions, a bill of materials
(CycloneDX) and the checksums. The last step installs the files into a clean environment and uses
them (`release.trial`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import audit, trial

ROOT = Path(__file__).parents[1]
PINS = "constraints.txt"
EXTRAS = "server,training,minilm"


def run(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a program; its failure ends the release."""
    without_path = {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=without_path, check=True)  # noqa: S603 - our own


def make(dist: Path) -> None:
    """Write the packages and the pinned versions into an empty folder."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", dist)
        # Everything else is made from the sdist, so the sdist is whole.
        run("tar", "--extract", "--file", found(dist, "nunatak-*.tar.gz"), folder=scratch)
        (source,) = scratch.iterdir()
        wheel = ("hatchling", "build", "--target", "wheel", "--directory", dist)
        run(sys.executable, "-m", *wheel, folder=source)
        operators = ("--no-deps", "--no-build-isolation", "--wheel-dir", dist, source / "kernels")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", *operators)
        client = source / "clients" / "typescript"
        for command in ("ci --silent", "run --silent build"):
            run("npm", *command.split(), folder=client)
        run("npm", "pack", "--silent", "--pack-destination", dist, folder=client)
        shutil.copyfile(source / PINS, dist / PINS)


def install(dist: Path, environment: Path) -> None:
    """Install the wheels into a new environment, at the pinned versions."""
    run(sys.executable, "-m", "venv", environment)
    pip = (environment / "bin" / "python", "-m", "pip", "install", "--quiet")
    pinned = ("--constraint", dist / PINS)
    wheel, operators = found(dist, "nunatak-*.whl"), found(dist, "nunatak_ops-*.whl")
    run(*pip, *pinned, "torch", folder=environment)
    run(*pip, *pinned, f"{wheel}[{EXTRAS}]", operators, folder=environment)


def describe(dist: Path, environment: Path) -> None:
    """Write the bill of materials of an environment, and the checksums of all files."""
    # The bill must not tell where the files lay on this machine.
    for record in environment.glob("lib/*/site-packages/nunatak*/direct_url.json"):
        record.unlink()
    wheel = found(dist, "nunatak-*.whl")
    bill = dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    options = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "-o", bill)
    # Its libraries would slow each start of Ray in the environment of the tests.
    tool = environment.with_name("bill") / "bin" / "python"
    run(sys.executable, "-m", "venv", tool.parents[1])
    run(tool, "-m", "pip", "install", "--quiet", "--constraint", dist / PINS, "cyclonedx-bom")
    run(tool, "-m", "cyclonedx_py", "environment", *options, environment / "bin/python")
    sums = [f"{hashlib.sha256(it.read_bytes()).hexdigest()}  {it.name}" for it in _files(dist)]
    (dist / trial.SUMS).write_text("\n".join(sums) + "\n", encoding="utf-8")


def found(folder: Path, pattern: str) -> Path:
    """Return the one file of this name."""
    (only,) = folder.glob(pattern)
    return only.absolute()


def _files(dist: Path) -> list[Path]:
    return sorted(it for it in dist.iterdir() if it.name != trial.SUMS)


def main(*options: str) -> None:
    """Build a release and try it."""
    match options:
        case ():
            audit.audit()
        case ("--without-audit",):
            print("NOT AUDITED: do not publish these files")
        case _:
            sys.exit(f"expected --without-audit or nothing, got {' '.join(options)}")
    dist = ROOT / "dist"
    make(dist)
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        install(dist, environment)
        describe(dist, environment)
        trial.walk(dist, environment, Path(folder))
    for file in (*_files(dist), dist / trial.SUMS):
        print(f"{file.stat().st_size:>12,}  {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
