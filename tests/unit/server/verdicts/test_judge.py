"""The judge: one fan-out for all tasks, an early end, and failures that never let through."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from doubles.drafts import CREATED_AT
from doubles.engines import FakeEngine, answer
from doubles.leases import until
from doubles.policies import classifier, make_policy, make_rule, when
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.services import Bench, Held
from doubles.serving import make_facts
from nunatak_contract.enums import Combine, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.policies import Policy
from nunatak_registry import PublishedPolicy
from nunatak_server.errors import OutOfMemoryError
from nunatak_server.predict import service
from nunatak_server.predict.types import Handling, TaskAnswer
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.turns import SLICE
from nunatak_server.verdicts import judge as judging
from nunatak_server.verdicts.judge import Judge, Judgement
from nunatak_server.verdicts.rules import TextDecision, decisions

BLOCK, ALLOW = VerdictAction.BLOCK, VerdictAction.ALLOW
CALM = answer(9.0, 0.0)


def published(policy: Policy, version: int = 1) -> PublishedPolicy:
    return PublishedPolicy(document=policy, version=version, published_at=CREATED_AT, by="ann")


def judge_of(bench: Bench[FakeEngine], policy: Policy, *, seconds: float = 0) -> Judge:
    async def look_up(name: str) -> PublishedPolicy:
        assert name == policy.name
        await asyncio.sleep(seconds)
        return published(policy)

    facts = make_facts(bench.store, policy=look_up)
    return Judge(facts=facts, service=bench.service, metrics=bench.metrics)


async def ask(judge: Judge, policy: Policy, *, own_deadline_s: float | None = None) -> Judgement:
    """Judge two texts; the default deadline is a minute."""
    handling = Handling(default_deadline_s=60, own_deadline_s=own_deadline_s)
    return await judge.judge(policy.name, ("a", "b"), handling)


def two_tasks(**changes: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    """Block if `attack` or `tone` says yes."""
    rules = [make_rule(when(task, "yes", threshold=0.5), name=task) for task in ("attack", "tone")]
    return make_policy(*rules, **changes)


Judged = tuple[Judge, FakeEngine, Bench[FakeEngine]]
Make = Callable[[Policy], Awaitable[Judged]]


@pytest.fixture
def make(held: Held) -> Make:
    async def made(policy: Policy) -> Judged:
        bench, _, engine = await held("attack", "tone")
        return judge_of(bench, policy), engine, bench

    return made


async def test_all_tasks_of_a_policy_are_asked_in_one_batch(make: Make) -> None:
    judge, engine, _ = await make(two_tasks())
    engine.outcome = CALM

    found = await ask(judge, two_tasks())

    assert engine.submissions == [{"attack", "tone"}]
    assert (found.action, found.failures) == (ALLOW, ())


async def test_decisions_about_many_texts_let_other_requests_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = count(), set[int]()

    async def take_turns() -> None:
        for _ in turns:
            await asyncio.sleep(0)

    def watched(*given: Any) -> Iterator[TextDecision]:  # noqa: ANN401 - passed on
        for it in decisions(*given):
            seen.add(next(turns))
            yield it

    monkeypatch.setattr(judging, "decisions", watched)
    condition, num_rules = when("attack", "yes"), 64
    policy = make_policy(*(make_rule(condition, name=f"{it}") for it in range(num_rules)))
    judge, engine, _ = await make(policy)
    engine.outcome = CALM
    other = asyncio.create_task(take_turns())

    texts = tuple(map(str, range(2 * SLICE // num_rules)))
    found = await judge.judge(policy.name, texts, Handling(default_deadline_s=60))

    other.cancel()
    assert found.action is ALLOW
    assert max(seen) > min(seen) + len(texts) - 1


async def test_a_certain_block_waits_for_no_other_task(make: Make) -> None:
    judge, engine, bench = await make(two_tasks())
    engine.answers_at_once = False
    judging = asyncio.create_task(ask(judge, two_tasks()))
    await until(lambda: bool(engine.rows))

    engine.answer("tone")
    found = await asyncio.wait_for(judging, timeout=10)

    assert (found.action, found.is_by_failure, found.failures) == (BLOCK, False, ())
    assert list(found.answers) == ["tone"]
    assert all(row.future.cancelled() for row in engine.rows if row.task == "attack")
    assert bench.admission.requests.total == 0
    lines = rendered(bench.metrics)
    assert 'nunatak_task_rows_total{task="tone"} 2.0' in lines
    assert 'nunatak_task_rows_total{task="attack"}' not in lines


@pytest.mark.parametrize("num_other_labels", [0, 300], ids=["few-labels", "many-labels"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_finding_in_one_text_counts_though_the_task_fails_about_another(
    held: Held, num_other_labels: int, *, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_s, read = 0.5, service._results  # noqa: SLF001 - what a thread does late

    def read_late(*given: Any) -> tuple[TaskAnswer, ...]:  # noqa: ANN401 - passed on
        time.sleep(deadline_s)
        return read(*given)

    if is_late:
        monkeypatch.setattr(service, "_results", read_late)
    policy = two_tasks(on_failure=OnFailure.ALLOW, deadline_ms=round(1000 * deadline_s))
    bench, store, engine = await held()
    head = classifier("no", "yes", *(f"other {it}" for it in range(num_other_labels)))
    for task in ("attack", "tone"):
        reference = store.add(task)
        store.manifests[reference] = store.manifests[reference].model_copy(update={"head": head})
        await bench.facts.traffic([reference], "a test")
        await bench.residency.preload(store.manifests[reference])
    judge = judge_of(bench, policy)
    engine.answers_at_once = False
    judging = asyncio.create_task(ask(judge, policy))
    await until(lambda: len(engine.rows) == 4)

    first = {row.task: row for row in reversed(engine.rows)}
    first["attack"].future.set_result(answer(0.0, 9.0, *[0.0] * num_other_labels))
    if not is_late:
        engine.outcome = OutOfMemoryError()
        engine.answer("attack", "tone")
    found = await asyncio.wait_for(judging, timeout=10)

    assert (found.action, found.is_by_failure) == (BLOCK, False)
    assert [it.applied[0].rule.name for it in found.decisions if it.applied] == ["attack"]
    assert [it.reference for it in found.failures] == ["attack"]
    assert bench.admission.requests.total == 0


async def test_a_block_because_nothing_can_be_masked_says_so(make: Make) -> None:
    conditions = when("attack", "yes"), when("tone", "yes")
    rule = make_rule(*conditions, action=VerdictAction.MASK, combine=Combine.ALL)
    judge, _, _ = await make(make_policy(rule))

    found = await ask(judge, make_policy(rule))

    assert (found.action, found.is_by_failure, found.failures) == (BLOCK, True, ())
    assert found.message == "what the rules have found cannot be masked"


@pytest.mark.parametrize(
    ("on_failure", "deadline_ms", "own_deadline_s"),
    [
        (OnFailure.BLOCK, 1, None),
        (OnFailure.ALLOW, 1, None),
        # The deadline of the request goes before that of the policy.
        (OnFailure.BLOCK, 600_000, 0.001),
    ],
)
async def test_a_late_request_decides_by_on_failure(
    make: Make, on_failure: OnFailure, deadline_ms: int, own_deadline_s: float | None
) -> None:
    policy = two_tasks(on_failure=on_failure, deadline_ms=deadline_ms)
    judge, engine, _ = await make(policy)
    engine.answers_at_once = False

    found = await ask(judge, policy, own_deadline_s=own_deadline_s)

    assert (found.action.value, found.is_by_failure) == (on_failure.value, True)
    assert {it.error.code for it in found.failures} <= {"deadline_exceeded", "deadline_too_short"}
    assert len(found.failures) == 2
    assert found.message == "no answer in time from attack, tone"


async def test_the_look_up_of_a_policy_counts_for_the_deadline_of_the_request(make: Make) -> None:
    _, _, bench = await make(two_tasks())
    late, in_time = (judge_of(bench, two_tasks(), seconds=it) for it in (60, 0.2))

    with raises("deadline_exceeded"):
        await ask(late, two_tasks(), own_deadline_s=0.01)
    _, left = await in_time.find("guard", Handling(default_deadline_s=60, own_deadline_s=30))

    assert 0 < left.deadline_s <= 29.8


async def test_a_dry_run_stops_nothing_that_the_server_refuses_as_a_whole(make: Make) -> None:
    for mode in PolicyMode:
        policy = two_tasks(mode=mode)
        judge, _, _ = await make(policy)
        asking = judge.judge(policy.name, ("a", ""), Handling(default_deadline_s=60))
        if mode is PolicyMode.ENFORCE:
            with raises("empty_text"):
                await asking
        else:
            found = await asking
            assert (found.action, found.decided, found.is_by_failure) == (ALLOW, BLOCK, True)
            assert {it.error.code for it in found.failures} == {"empty_text"}


@pytest.mark.parametrize("known", [["attack"], ["attack", "tone"]])
async def test_a_text_without_room_is_refused_also_if_a_task_is_not_looked_up_yet(
    held: Held, known: list[str]
) -> None:
    policy = two_tasks(on_failure=OnFailure.ALLOW)
    # Room for the rows of one task, not of both.
    admission = Admission(max_requests=10, max_tokens=12, max_bytes=1000)
    bench, store, engine = await held(*known, admission=admission)
    store.add("tone")
    engine.outcome = CALM

    with raises("request_too_large"):
        await ask(judge_of(bench, policy), policy)


async def test_a_task_that_nobody_published_is_a_failure(make: Make) -> None:
    policy = make_policy(make_rule(when("nobody", "yes")))
    judge, _, _ = await make(policy)

    found = await ask(judge, policy)

    assert (found.action, found.is_by_failure) == (BLOCK, True)
    assert [it.error.code for it in found.failures] == ["task_not_found"]
