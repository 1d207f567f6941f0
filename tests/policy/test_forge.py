"""The files for a public forge name only things that exist."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from nunatak_contract.manifest import TaskManifest
from nunatak_registry.index.schema import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda it: it.name)
def test_a_workflow_calls_targets_and_scripts_that_exist(workflow: Path) -> None:
    lines = "\n".join(step.get("run", "") for step in steps(workflow))

    assert set(re.findall(r"make (\w+)", lines)) <= TARGETS
    assert all((ROOT / it).is_file() for it in re.findall(r"bash (\S+)", lines))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda it: it.name)
def test_a_workflow_may_change_nothing_unless_a_job_says_so(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))

    assert read["permissions"] == {"contents": "read"}
    checkouts = [it for it in steps(workflow) if it.get("uses", "").startswith("actions/checkout")]
    assert all(it["with"]["persist-credentials"] is False for it in checkouts)


def test_tests_run_on_every_python_from_the_oldest_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    read = yaml.safe_load((FORGE / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    pythons = read["jobs"]["tests"]["strategy"]["matrix"]["python"]

    supported = SpecifierSet(project["requires-python"])
    assert [it for it in pythons if it not in supported] == []
    assert "3.10" not in supported
    assert pythons[0] == "3.11"


def test_dependabot_watches_folders_that_exist() -> None:
    read = yaml.safe_load((FORGE / "dependabot.yml").read_text(encoding="utf-8"))

    assert all((ROOT / it["directory"].lstrip("/")).is_dir() for it in read["updates"])


def test_the_compatibility_page_names_the_layouts_of_this_release() -> None:
    (index,) = re.findall(r"^\| index [^|]*\| (\d+) \|", COMPATIBILITY, flags=re.MULTILINE)
    (manifest,) = re.findall(r"^\| manifest \| (\d+) \|", COMPATIBILITY, flags=re.MULTILINE)

    assert int(index) == SCHEMA_VERSION
    assert int(manifest) == TaskManifest.model_fields["schema_version"].default


def test_the_node_of_the_compatibility_page_is_the_oldest_of_the_package() -> None:
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text())
    (node,) = re.findall(r"^\| Node (\d+) \|", COMPATIBILITY, flags=re.MULTILINE)

    assert package["engines"]["node"] == f">={node}"
