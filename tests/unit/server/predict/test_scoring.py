"""Laws of the scorer: the server's answers, from batches that depend on the chunk alone."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from doubles.corpora import make_place
from doubles.tasks import MAX_LENGTH
from nunatak_contract.enums import OnLong, ProblemType
from nunatak_contract.requests import Input, Parameters, Query, Question
from nunatak_model import Backbone, BetweenLayers, Row, load_backbone
from nunatak_registry import Registry
from nunatak_server.engine.compute import BatchCompute, Compute
from nunatak_server.local import LocalPredictor
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.scoring import Scorer
from nunatak_versions import load_task

LONG = "the third parcel is late. " * 20
INPUTS: dict[tuple[str, ...], tuple[Input, ...]] = {
    ("tone", "topics", "stars", "names"): ("hello", LONG, "thank you", "hello", "x y z"),
    ("tone", "topics"): (("a question", "an answer"), ("a question", LONG), "one"),
    ("facts",): (Question(question="where?", context=LONG), Question(question="x", context="y")),
    ("search",): (Query(query="how high?", documents=("8,849 m", LONG, "far")),),
}


@pytest.fixture(name="place", scope="module")
def make_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(name="backbone", scope="module")
def load(place: Path) -> Backbone:
    return load_backbone(place / "backbone")


def scorer(
    place: Path,
    backbone: Backbone,
    *names: str,
    options: Parameters = DEFAULT_OPTIONS,
    batch_tokens: int | None = None,
    compute: Compute | None = None,
) -> Scorer:
    with Registry.open(place / "registry") as registry:
        manifests = {name: registry.resolve(name) for name in names}
        tasks = {
            name: load_task(it, registry.read_blob(it), backbone) for name, it in manifests.items()
        }
    return Scorer(
        backbone,
        tasks,
        options=options,
        max_text_chars=32_768,
        batch_tokens=batch_tokens,
        compute=compute,
    )


@pytest.mark.parametrize("names", INPUTS)
def test_the_answers_of_a_chunk_are_the_answers_of_a_server(
    place: Path, backbone: Backbone, names: tuple[str, ...]
) -> None:
    inputs = INPUTS[names]
    with Registry.open(place / "registry") as registry, LocalPredictor(registry, backbone) as local:
        expected: Any = local.predict(inputs, names).results

    for batch_tokens in (1, 200, 100_000):
        asked = scorer(place, backbone, *names, batch_tokens=batch_tokens)
        scored = asked.score(asked.read(inputs))

        assert scored.positions == tuple(range(len(inputs)))
        assert [it.extents for it in scored.answers] == [it.extents for it in expected]
        for mine, theirs in zip(scored.answers, expected, strict=True):
            if mine.problem_type is ProblemType.REGRESSION:
                assert mine.predicted == pytest.approx(theirs.predicted, abs=1e-5)
            else:
                assert mine.predicted == theirs.predicted
            for one, other in zip(mine.outputs, theirs.outputs, strict=True):
                for item, same in zip(one, other, strict=True):
                    assert item == pytest.approx(same, abs=1e-5)


def test_a_chunk_that_is_scored_again_gives_the_same_numbers(
    place: Path, backbone: Backbone
) -> None:
    names = ("tone", "topics", "stars", "names")
    first, second = scorer(place, backbone, *names), scorer(place, backbone, *names)
    inputs = [f"parcel {number} " * (1 + number % 7) for number in range(200)]

    assert first.score(first.read(inputs)) == second.score(second.read(inputs))


def test_refused_inputs_take_nothing_from_the_others(place: Path, backbone: Backbone) -> None:
    options = Parameters(on_long=OnLong.REFUSE)
    asked = scorer(place, backbone, "tone", "names", options=options)
    pair = ("a question", "an answer")
    inputs = ["hello", LONG, "nul \0", pair, "x" * 40_000, "thank you"]

    scored = asked.score(asked.read(inputs))

    found = {at: (it.reference, it.error.code) for at, it in scored.refusals.items()}
    assert found == {
        1: ("tone", "too_many_tokens"),
        2: (None, "invalid_text"),
        3: ("names", "wrong_input_kind"),
        4: (None, "text_too_long"),
    }
    assert scored.positions == (0, 5)
    alone = asked.score(asked.read(["hello", "thank you"]))
    assert scored.answers == alone.answers


def test_a_stopped_scorer_computes_no_further_batch(place: Path, backbone: Backbone) -> None:
    scored = list[Row]()

    def stop(row: Row, values: list[float]) -> list[float]:
        scored.append(row)
        asked.stop()
        return values

    asked = scorer(place, backbone, "tone", batch_tokens=64, compute=Changed(backbone, stop))

    with pytest.raises(CancelledError):
        asked.score(asked.read([f"parcel {number} " * 7 for number in range(200)]))
    assert sum(row.encoding.num_tokens for row in scored) <= 64


class Changed:
    """Computes like the engine, and changes the logits of each row."""

    stops_between_layers = False

    def __init__(
        self, backbone: Backbone, change: Callable[[Row, list[float]], list[float]]
    ) -> None:
        self._compute, self._change = BatchCompute(backbone), change

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        return list(map(self._change, rows, self._compute(rows)))


def test_an_input_whose_outputs_are_not_finite_is_refused(place: Path, backbone: Backbone) -> None:
    (poisoned,) = backbone.tokenizer.encode(["poison"], max_length=MAX_LENGTH)

    def poison(row: Row, values: list[float]) -> list[float]:
        return [math.nan for _ in values] if row.encoding == poisoned else values

    sick = scorer(place, backbone, "tone", "stars", compute=Changed(backbone, poison))
    well = scorer(place, backbone, "tone", "stars")

    scored = sick.score(sick.read(["hello", "poison", "bye"]))

    assert scored.positions == (0, 2)
    assert scored.refusals[1].error.code == "task_unhealthy"
    expected = well.score(well.read(["hello", "poison", "bye"]))
    for mine, theirs in zip(scored.answers, expected.answers, strict=True):
        assert mine.outputs == (theirs.outputs[0], theirs.outputs[2])
