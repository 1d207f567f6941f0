"""The files of a release, made and used outside of the checkout."""

import json
import re
import shutil
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from doubles.listeners import Exchange, listening
from release import audit, build, trial

ROOT = build.ROOT
TOOLS = ("npm", "g++", "curl", "sha256sum")
NAMED = re.compile(r"nunatak(?:_ops|-client)?[:-](\d+\.\d+\.\d+(?:-?rc\.?\d+)?)")
"""The version in the name of an image or of a file of a release."""
MISSING = [it for it in TOOLS if shutil.which(it) is None]


def test_all_packages_of_a_release_have_one_version() -> None:
    project, operators = (
        tomllib.loads((ROOT / it / "pyproject.toml").read_text())["project"]
        for it in (".", "kernels")
    )
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text())
    lock = json.loads((ROOT / "clients" / "typescript" / "package-lock.json").read_text())
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "Chart.yaml").read_text())
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("clients/*/README.md")]
    files = [*pages, *(ROOT / "deploy").rglob("*.yaml")]
    named = [it for file in files for it in NAMED.findall(file.read_text())]

    charts = [chart["version"], chart["appVersion"]]
    versions = [operators["version"], package["version"], lock["version"], *charts, *named]
    assert len(named) > 6
    assert {Version(it) for it in versions} == {Version(project["version"])}
    assert package["version"] == lock["packages"][""]["version"]


ADVISORY = {"id": "GHSA-1", "affected": [{"package": {"name": "jinja2", "ecosystem": "PyPI"}}]}


@contextmanager
def advisories(status: int | None, answer: object) -> Generator[str]:
    """Yield the address of a database of advisories that gives one answer, or of none."""

    class Database(Exchange):
        def reply(self) -> None:
            self.body()
            self.answer(status or 0, json.dumps(answer).encode())

    if status is None:
        yield "http://127.0.0.1:9/v1/query"
        return
    with listening(Database) as address:
        yield f"{address}/v1/query"


@pytest.mark.parametrize(
    ("status", "answer", "is_refused"),
    [
        (200, {}, False),
        (200, {"vulns": [ADVISORY]}, True),
        (200, {"vulns": [{**ADVISORY, "schema_version": "2.0.0"}]}, True),
        (500, {}, True),
        pytest.param(None, {}, True, marks=pytest.mark.slow),
    ],
    ids=["clean", "finding", "unread", "broken", "gone"],
)
def test_an_audit_passes_only_if_the_database_answers_without_a_finding(
    status: int | None, answer: object, *, is_refused: bool, tmp_path: Path
) -> None:
    pytest.importorskip("pip_audit", reason="no `pip-audit` in this environment")
    pins = tmp_path / "pins.txt"
    pins.write_text("jinja2==3.1.2\n")
    with advisories(status, answer) as service:
        if not is_refused:
            audit.audit(pins, service)
            return
        with pytest.raises(SystemExit, match=re.escape(service)):
            audit.audit(pins, service)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    build.make(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_a_release_is_installed_and_its_first_task_is_trained_served_and_asked(
    dist: Path, tmp_path: Path
) -> None:
    build.install(dist, tmp_path / "environment")
    build.describe(dist, tmp_path / "environment")
    trial.walk(dist, tmp_path / "environment", tmp_path)

    (bill,) = dist.glob("*.cdx.json")
    named = {it["name"] for it in json.loads(bill.read_text())["components"]}
    assert {"torch", "fastapi", "nunatak-ops"} <= named
    assert "file://" not in bill.read_text()
    summed = {line.split()[1] for line in (dist / trial.SUMS).read_text().splitlines()}
    assert summed == {it.name for it in dist.iterdir()} - {trial.SUMS}
    assert len(summed) == 6
