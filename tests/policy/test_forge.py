"""The files for a public forge name only things that exist."""

import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
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
ZIZMOR = Path(sys.executable).with_name("zizmor")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
OLDEST = "3.11.0"
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


@pytest.mark.skipif(not ZIZMOR.is_file(), reason="no `zizmor` in this environment")
def test_no_workflow_has_a_known_weakness() -> None:
    checked = subprocess.run(  # noqa: S603 - our own files
        [ZIZMOR, "--offline", "--no-config", FORGE], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout


NODE_INPUTS = {"node-version", "cache", "cache-dependency-path", "package-manager-cache"}
"""The inputs that the workflows may give to `setup-node`, which ignores an unknown one."""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda it: it.name)
def test_a_workflow_installs_the_cpu_build_of_torch(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))

    assert read["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda it: it.name)
def test_a_workflow_gives_node_only_inputs_that_the_action_reads(workflow: Path) -> None:
    nodes = [it for it in steps(workflow) if it.get("uses", "").startswith("actions/setup-node@")]
    asked = "npm" in workflow.read_text("utf-8") or "make release" in workflow.read_text("utf-8")

    assert bool(nodes) == asked
    assert all(it["with"].keys() <= NODE_INPUTS for it in nodes)


@pytest.mark.parametrize(("tag", "kind"), [("v1.0.0rc1", "--prerelease"), ("v1.0.0", "--latest")])
def test_a_candidate_is_drafted_as_a_pre_release(tag: str, kind: str, tmp_path: Path) -> None:
    (script,) = (
        it["run"] for it in steps(FORGE / "workflows" / "release.yml") if "gh " in it.get("run", "")
    )
    program = tmp_path / "gh"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)

    done = subprocess.run(  # noqa: S603 - a script of our own
        ["bash", "-ec", script],  # noqa: S607 - whichever bash is on the path
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split()[:5] == ["release", "create", tag, "--draft", kind]


def test_tests_run_on_every_python_from_the_oldest_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    read = yaml.safe_load((FORGE / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    pythons = read["jobs"]["tests"]["strategy"]["matrix"]["python"]

    supported = SpecifierSet(project["requires-python"])
    assert [it for it in pythons if it not in supported] == []
    assert "3.10" not in supported
    assert pythons[0] == OLDEST


def test_every_pin_that_is_installed_takes_the_oldest_python() -> None:
    refusing, num_read = list[str](), 0
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        with suppress(PackageNotFoundError):
            read = metadata(line.partition("==")[0]).json
            allowed = str(read.get("requires_python", ""))
            num_read += 1
            if OLDEST not in SpecifierSet(allowed):
                refusing.append(f"{line}: {allowed}")

    assert refusing == []
    assert num_read > 200


def test_dependabot_watches_folders_that_exist() -> None:
    read = yaml.safe_load((FORGE / "dependabot.yml").read_text(encoding="utf-8"))

    assert all((ROOT / it["directory"].lstrip("/")).is_dir() for it in read["updates"])


def test_the_page_of_upgrades_names_the_layouts_of_this_release() -> None:
    page = (ROOT / "docs" / "upgrades.md").read_text(encoding="utf-8")
    (index,) = re.findall(r"^\| index [^|]*\| (\d+) \|", page, flags=re.MULTILINE)
    (manifest,) = re.findall(r"^\| manifest \| (\d+) \|", page, flags=re.MULTILINE)

    assert int(index) == SCHEMA_VERSION
    assert int(manifest) == TaskManifest.model_fields["schema_version"].default


def test_the_node_of_the_compatibility_page_is_the_oldest_of_the_package() -> None:
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text())
    (node,) = re.findall(r"^\| Node (\d+) \|", COMPATIBILITY, flags=re.MULTILINE)

    assert package["engines"]["node"] == f">={node}"
