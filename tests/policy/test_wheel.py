"""What leaves the repository."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(  # noqa: S603 - our own interpreter
        [
            *(sys.executable, "-m", "hatchling", "build"),
            *("--target", "wheel", "--directory", str(tmp_path)),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert tops == {Path(package).name for package in packages}
    assert all(f"{top}/py.typed" in names for top in tops)
    page = {it.name for it in (ROOT / "server" / "nunatak_server" / "page").glob("*.*")}
    assert {f"nunatak_server/page/{name}" for name in page} <= set(names)


def test_constraints_pin_every_dependency_by_name() -> None:
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {
        requirement.split("[")[0].split(">")[0].split("=")[0].strip().lower().replace("_", "-")
        for group in groups
        for requirement in group
    } - {"nunatak"}

    assert wanted <= pins
