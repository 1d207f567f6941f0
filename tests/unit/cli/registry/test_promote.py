"""`nunatak task promote` and `rollback` move an alias only to a version that runs as recorded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.replicas import beat
from doubles.tasks import publish_tiny_task, tiny_task
from doubles.terminals import nunatak
from nunatak_contract.evidence import ProbeRecord
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry


@pytest.fixture(scope="module")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_backbone(tmp_path_factory.mktemp("backbone"), num_layers=2)


@pytest.fixture(scope="module")
def backbone(backbone_folder: Path) -> Backbone:
    return load_backbone(backbone_folder)


@pytest.fixture
def registry(tmp_path: Path, backbone: Backbone) -> Iterator[Registry]:
    """Task `tone`: version 1 is `prod`, and version 2 fails its probe."""
    with Registry.open(tmp_path) as opened:
        publish_tiny_task(opened, backbone, seed=1)
        opened.promote("tone", "prod", 1)
        draft, blobs = tiny_task(backbone, seed=2)
        false = ProbeRecord(inputs=("hello",), logits=((9.0, 9.0, 9.0),))
        opened.publish(draft.model_copy(update={"probe": false}), blobs)
        publish_tiny_task(opened, backbone, seed=3)
        yield opened


@pytest.fixture
def options(registry: Registry, tmp_path: Path, backbone_folder: Path) -> tuple[str, ...]:
    assert registry.task("tone").versions == (1, 2, 3)
    return ("--registry", str(tmp_path), "--backbone", str(backbone_folder))


def test_version_that_passes_its_probe_is_promoted(
    registry: Registry, options: tuple[str, ...]
) -> None:
    ran = nunatak("task", "promote", "tone/3", *options)

    assert ran.stdout == "tone@prod -> version 3 (was 1)\n"
    assert registry.task("tone").aliases == {"prod": 3}


def test_version_that_fails_its_probe_gets_no_alias_unless_that_is_asked_for(
    registry: Registry, options: tuple[str, ...]
) -> None:
    ran = nunatak("task", "promote", "tone/2", *options)

    ran.assert_refused("probe_failed")
    assert registry.task("tone").aliases == {"prod": 1}
    assert nunatak("task", "promote", "tone/2", "--unprobed", *options).exit_code == 0
    assert registry.task("tone").aliases == {"prod": 2}


def test_rollback_to_a_version_that_fails_its_probe_leaves_the_alias(
    registry: Registry, options: tuple[str, ...]
) -> None:
    registry.promote("tone", "prod", 2)
    registry.promote("tone", "prod", 3)

    refused = nunatak("task", "rollback", "tone", *options)
    unprobed = nunatak("task", "rollback", "tone", "--unprobed", *options)

    refused.assert_refused("probe_failed")
    assert unprobed.stdout == "tone@prod -> version 2 (was 3)\n"


def test_a_move_says_which_policies_the_task_cannot_decide_any_more(
    registry: Registry, backbone: Backbone, options: tuple[str, ...]
) -> None:
    registry.policies.put(make_policy(make_rule(when("tone", "calm"))))
    publish_tiny_task(registry, backbone, labels=("other", "names"))
    moves = [
        ("promote", "tone/4"),
        ("rollback", "tone"),
        ("promote", "tone/4"),
        ("promote", "tone/3"),
    ]
    registry.promote("tone", "prod", 3)

    said = [nunatak("task", *move, *options).stderr for move in (*moves, ("rollback", "tone"))]

    assert ["there is no label 'calm'" in it for it in said] == [True, False, True, False, True]


def test_a_promotion_waits_for_every_replica(registry: Registry, options: tuple[str, ...]) -> None:
    alone = nunatak("task", "promote", "tone/3", "--wait", *options)
    beat(registry, "late", lease_s=None)
    late = nunatak("task", "rollback", "tone", "--wait", "--timeout", "0", *options)
    beat(registry, "late", lease_s=None)
    followed = nunatak("task", "promote", "tone/1", "--wait", *options)

    assert alone.stdout == "tone@prod -> version 3 (was 1)\n0 replicas follow\n"
    assert late.exit_code == 1
    assert "error [replicas_behind]: " in late.stderr
    assert "had not confirmed it: late;" in late.stderr
    assert registry.resolve("tone").version == 1
    assert "1 replica follows; 1 without a lease" in followed.stdout


def test_replicas_are_listed(registry: Registry, options: tuple[str, ...]) -> None:
    none = nunatak("replicas", *options[:2])
    beat(registry, "pod-7")
    table = nunatak("replicas", *options[:2])
    listed = nunatak("replicas", "--json", *options[:2]).json()

    assert " ".join(none.stderr.split()) == f"no server process is listed in {options[1]}"
    assert "pod-7" in table.stdout
    assert listed["revision"] == registry.generation().number
    assert [(it["id"], it["is_current"]) for it in listed["replicas"]] == [("pod-7", True)]
    assert listed["replicas"][0]["load"]["waiting"] == 3
