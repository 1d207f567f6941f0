from dataclasses import replace
from typing import Any

import pytest

from doubles.drafts import DRAFT_BACKBONE
from doubles.engines import FakeEngine, answer
from doubles.refusals import code_of
from doubles.rendering import rendered
from doubles.services import Bench, make_admission, make_service
from doubles.serving import FakeStore, make_settings
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, embedding_branch
from nunatak_server.errors import (
    DeadlineExceededError,
    DeadlineTooShortError,
    OutOfMemoryError,
    OverloadedError,
    TaskUnhealthyError,
)
from nunatak_server.predict.types import (
    BACKBONE,
    EmbeddingRequest,
    Embeddings,
    Handling,
    normalised,
)
from nunatak_server.scheduler.admission import State
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import Priority, RowOutcome

VECTOR = [3.0, 4.0]
ANSWER = answer(*VECTOR)
MAX_TOKENS = 120
SETTINGS = make_settings(
    max_inputs=3, max_documents=1, max_tasks_per_request=1, max_text_chars=1000
)
SLOW = BatchTimeModel(tokens_per_s=10.0, largest_tokens=20.0)
URGENT = EmbeddingRequest(
    inputs=("ab", "c"),
    truncates=False,
    normalises=False,
    backbone=DRAFT_BACKBONE,
    handling=Handling(default_deadline_s=1, caller="support", priority=Priority.HIGH),
)


def make_bench(
    backbone: Backbone,
    outcome: RowOutcome | None = ANSWER,
    *,
    time_model: BatchTimeModel | None = None,
) -> Bench[FakeEngine]:
    admission = make_admission(max_tokens=MAX_TOKENS, max_requests=4, time_model=time_model)
    store = FakeStore(embedding_branch(backbone))
    return make_service(
        backbone, store, FakeEngine(outcome), admission=admission, settings=SETTINGS
    )


@pytest.fixture
def bench(backbone: Backbone) -> Bench[FakeEngine]:
    return make_bench(backbone)


async def embed(
    bench: Bench[FakeEngine],
    *texts: str,
    deadline_s: float = 60,
    **changes: Any,  # noqa: ANN401 - fields of a request
) -> Embeddings:
    handling = Handling(default_deadline_s=deadline_s)
    return await bench.service.embed(replace(URGENT, inputs=texts, handling=handling, **changes))


async def refusal(bench: Bench[FakeEngine], *texts: str, deadline_s: float = 60) -> NunatakError:
    with pytest.raises(NunatakError) as refused:
        await embed(bench, *texts, deadline_s=deadline_s)
    return refused.value


async def test_every_text_has_its_vector_and_all_tokens_are_counted(
    bench: Bench[FakeEngine],
) -> None:
    found = await embed(bench, "ab", "c")

    assert found.vectors == (VECTOR, VECTOR)
    assert found.num_tokens == sum(row.spec.encoding.num_tokens for row in bench.engine.rows)
    assert (found.timings.queue_s, found.timings.batch_rows) == (0.1, 2)
    assert 'task="(backbone)"' in rendered(bench.metrics)


@pytest.mark.parametrize("is_literal", [False, True])
async def test_only_a_literal_text_hides_nothing_behind_special_tokens(
    backbone: Backbone, *, is_literal: bool
) -> None:
    tokenizer = served(TokenizerFamily.BERT)
    bench = make_bench(replace(backbone, tokenizer=tokenizer))

    await embed(bench, "a [SEP] b", is_literal=is_literal)

    (row,) = bench.engine.rows
    assert tokenizer.finds_special(row.spec.encoding) is not is_literal


async def test_rows_are_paid_on_the_trunk_alone_and_are_nobodys_siblings(
    bench: Bench[FakeEngine],
) -> None:
    await bench.service.embed(URGENT)
    first, second = bench.engine.rows

    assert (first.task, first.version) == (BACKBONE, 0)
    own, other = first.spec, second.spec
    assert (own.trunk_tokens, own.branch_tokens) == (own.encoding.num_tokens, 0)
    assert own.group != other.group
    assert max(own.group, other.group) < -1
    assert {(it.caller, it.priority) for it in (own, other)} == {("support", Priority.HIGH)}


async def test_an_urgent_text_does_not_wait_for_its_callers_others(backbone: Backbone) -> None:
    bench = make_bench(backbone, time_model=SLOW)

    with bench.admission.admit(URGENT.handling.caller) as waiting:
        waiting.take_tokens({BACKBONE: 70})

        found = await bench.service.embed(URGENT)
        with pytest.raises(DeadlineTooShortError):
            await bench.service.embed(
                replace(URGENT, handling=replace(URGENT.handling, priority=Priority.NORMAL))
            )

    assert found.vectors == (VECTOR, VECTOR)


def test_a_vector_without_length_stays_as_it_is() -> None:
    assert normalised([0.0, 0.0]) == [0.0, 0.0]


async def test_what_is_refused_takes_nothing(bench: Bench[FakeEngine]) -> None:
    assert code_of(await refusal(bench, "a", "b", "c", "d")) == "too_many_inputs"
    with bench.admission.admit() as other:
        other.take_tokens({BACKBONE: 0.5 * MAX_TOKENS, "tone": 0.3 * MAX_TOKENS})
        assert isinstance(await refusal(bench, "a"), OverloadedError)
    bench.readiness.move_to(State.DRAINING)
    assert code_of(await refusal(bench, "a")) == "draining"

    assert bench.engine.rows == []
    assert (bench.admission.requests.total, bench.admission.tokens.total) == (0, 0)


async def test_a_deadline_ends_the_wait_and_the_rows(backbone: Backbone) -> None:
    bench = make_bench(backbone, outcome=None)

    assert isinstance(await refusal(bench, "a", deadline_s=0.2), DeadlineExceededError)

    assert all(row.is_cancelled for row in bench.engine.rows)
    assert (bench.admission.requests.total, bench.admission.tokens.total) == (0, 0)


async def test_a_row_that_fails_fails_the_request_and_is_no_version_that_is_rolled_back(
    backbone: Backbone,
) -> None:
    sick = TaskUnhealthyError(BACKBONE, 0, "is sick")
    bench = make_bench(backbone, outcome=sick)

    failure = await refusal(bench, "a", "b")

    assert code_of(failure) == "backbone_unhealthy"
    assert str(failure).startswith("the backbone is sick; ")
    assert "roll" not in str(failure)
    assert 'outcome="backbone_unhealthy",task="(backbone)"' in rendered(bench.metrics)


async def test_a_row_that_is_not_computed_fails_the_request(backbone: Backbone) -> None:
    refused = OutOfMemoryError()

    assert await refusal(make_bench(backbone, outcome=refused), "a", "b") is refused
