"""`nunatak predict` in this process, for heads of every kind."""

import json

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_contract.enums import HeadKind
from nunatak_model import load_backbone
from nunatak_registry import Registry

ARGUMENTS: dict[HeadKind, tuple[list[str], set[str]]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: (["ann came"], {"label", "score"}),
    HeadKind.TOKEN_CLASSIFICATION: (
        ["ann came", "--aggregation", "simple"],
        {"entity_group", "score", "word", "start", "end"},
    ),
    HeadKind.QUESTION_ANSWERING: (
        ["ann came", "--question", "who?"],
        {"answer", "score", "start", "end"},
    ),
    HeadKind.RANKING: (
        ["who?", "--document", "ann", "--document", "bob"],
        {"index", "score", "document"},
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that name a backbone and a registry with a task for each kind of head."""
    folder = save_tiny_backbone(tmp_path_factory.mktemp("backbone"))
    location = tmp_path_factory.mktemp("registry")
    with Registry.open(location) as registry:
        for kind in HeadKind:
            publish_tiny_task(registry, load_backbone(folder), task=kind.value, kind=kind)
    return "--registry", str(location), "--backbone", str(folder)


@pytest.mark.parametrize("kind", HeadKind)
def test_each_kind_answers_in_its_own_shape(kind: HeadKind, places: tuple[str, ...]) -> None:
    arguments, keys = ARGUMENTS[kind]

    ran = nunatak("predict", *arguments, "--task", kind.value, *places, "--json")

    assert ran.exit_code == 0
    (result,) = json.loads(ran.stdout)["results"]
    assert result["reference"] == kind.value
    assert result["outputs"]
    assert all(set(item) == keys for item in result["outputs"])


def test_a_task_that_does_not_read_this_says_so(places: tuple[str, ...]) -> None:
    ran = nunatak("predict", "ann came", "--task", "ranking", *places)

    assert ran.exit_code == 1
    assert "wrong_input_kind" in ran.stdout
