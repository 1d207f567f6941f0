"""The judge: one fan-out for all tasks, an early end, and failures that never let through.

A campaign judges texts while tasks and policies change.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from zlib import crc32

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.engines import FakeEngine, answer
from doubles.leases import until
from doubles.policies import classifier, decide, make_policy, make_rule, scored, when
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.services import Bench, Held, make_service
from doubles.serving import FakeStore, RecordingObserver, make_facts
from doubles.tasks import random_branch
from nunatak_contract.enums import Combine, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import TopK
from nunatak_contract.policies import Policy
from nunatak_registry import CorruptBlobError, PublishedPolicy
from nunatak_server.errors import OutOfMemoryError, TaskUnhealthyError
from nunatak_server.predict import service
from nunatak_server.predict.types import Handling, TaskAnswer
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.rows import PendingRow, RowOutcome
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

    # Neither deadline is the server's own minute.
    asking = ask(judge, policy, own_deadline_s=own_deadline_s)
    found = await asyncio.wait_for(asking, timeout=10)

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


TASKS: tuple[str, ...] = ("attack", "tone", "topic", "spam")
AT_ONCE = 16
ROOM_FOR = 6
"""Little room, so that promotions evict older versions."""
DEADLINE_S = 0.02
FAULT_SHARE = 0.02
FAULTS = ("late", "sick", "broken")
COUNT = 500


class DrawnEngine(FakeEngine):
    """Answers each row by its task, version and caller; some rows fail, some never end."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.answers = dict[str, dict[str, tuple[int, bool]]]()
        """The version and the answer of each task for each caller; absent for failures."""

    def outcome_of(self, row: PendingRow) -> RowOutcome | None:
        if self._chance.random() < FAULT_SHARE:
            is_late = self._chance.choice(FAULTS) == "late"
            return None if is_late else TaskUnhealthyError(row.task, row.version, "is sick")
        says_yes = drawn(row.task, row.version, row.spec.caller)
        self.answers.setdefault(row.spec.caller, {})[row.task] = (row.version, says_yes)
        return answer(0.0, 9.0) if says_yes else answer(9.0, 0.0)


def drawn(task: str, version: int, caller: str) -> bool:
    """Return the answer of a version to the text of a caller."""
    return crc32(f"{task}/{version}/{caller}".encode()) % 3 == 0


class Campaign:
    """Judges texts of many callers, and changes tasks and policies meanwhile."""

    def __init__(self, *, seed: int) -> None:
        self.chance = random.Random(seed)
        self.wrong, self.counts = list[str](), Counter[str]()
        backbone = tiny_backbone(num_layers=2)
        self.store = FakeStore(random_branch(backbone, TopK(num_layers=1)))
        self.engine, self.observer = DrawnEngine(self.chance), RecordingObserver()
        self.bench = make_service(
            backbone,
            self.store,
            self.engine,
            admission=Admission(max_requests=100, max_tokens=100_000, max_bytes=100_000),
            observer=self.observer,
            room_for=ROOM_FOR,
        )
        self.versions, self.policies = dict.fromkeys(TASKS, 0), list[PublishedPolicy]()
        self.facts = make_facts(self.store, policy=self._look_up)
        service, metrics = self.bench.service, self.bench.metrics
        self.judge = Judge(facts=self.facts, service=service, metrics=metrics)
        for task in TASKS:
            self.promote(task)

    async def _look_up(self, _: str) -> PublishedPolicy:
        return self.policies[-1]

    def promote(self, task: str) -> None:
        """Publish a version that says other things; one in ten cannot be loaded."""
        self.versions[task] += 1
        self.store.add(task, self.versions[task])
        if self.chance.random() < 0.1:
            reference = f"{task}/{self.versions[task]}"
            self.store.broken[reference] = CorruptBlobError("d" * 64, "is missing")
        self.bench.facts.invalidate()

    def change_policy(self) -> None:
        self.policies.append(published(drawn_policy(self.chance), len(self.policies) + 1))
        self.facts.invalidate()

    async def work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % 37 == 0:
                self.promote(self.chance.choice(TASKS))
            if number % 11 == 0:
                self.change_policy()
            if number % 53 == 0:
                with suppress(NunatakError):  # The task may be in use.
                    self.bench.residency.evict(self.chance.choice(TASKS))
            await self.ask(f"caller-{number}")

    async def ask(self, caller: str) -> None:
        """Judge one text, and compare the verdict with the rules, which have laws of their own."""
        before, num_policies = dict(self.versions), len(self.policies)
        handling = Handling(default_deadline_s=DEADLINE_S, own_deadline_s=DEADLINE_S, caller=caller)
        found = await self.judge.judge("guard", ("a",), handling)
        answers = self.engine.answers.pop(caller, {})
        known = {
            task: scored(task, {"yes": float(says_yes), "no": float(not says_yes)})
            for task, (_, says_yes) in answers.items()
        }
        (expected,) = decide(found.published.document, known, ["a"])
        self.counts += Counter(asked=1, by_failure=found.is_by_failure)
        self.counts[found.action.value] += 1
        if found.action is not expected.action:
            self.wrong.append(f"{caller}: {found.action}, not {expected.action}: {answers}")
        for task, (version, _) in answers.items():
            if not before[task] <= version <= self.versions[task]:
                self.wrong.append(f"{caller}: {task}/{version} answered after a promotion")
        if not num_policies <= found.published.version <= len(self.policies):
            self.wrong.append(f"{caller}: policy {found.published.version} is stale")


def drawn_policy(chance: random.Random) -> Policy:
    """Return a policy with one to three rules about some of the tasks."""
    rules = [
        make_rule(
            *(
                when(task, "yes", threshold=chance.choice((0.5, None)))
                for task in chance.sample(TASKS, chance.randint(1, 3))
            ),
            name=f"rule-{number}",
            action=chance.choice((VerdictAction.FLAG, VerdictAction.BLOCK)),
            combine=chance.choice(list(Combine)),
        )
        for number in range(chance.randint(1, 3))
    ]
    return make_policy(*rules, on_failure=chance.choice(list(OnFailure)))


async def test_no_verdict_is_wrong_under_promotions_evictions_and_failures() -> None:
    campaign, numbers = Campaign(seed=1), iter(range(COUNT))
    campaign.change_policy()

    await asyncio.gather(*(campaign.work(numbers) for _ in range(AT_ONCE)))

    counts = campaign.counts
    assert campaign.wrong == []
    assert counts["asked"] == COUNT
    assert min(counts["by_failure"], counts["block"], len(campaign.observer.evicted)) > 0
