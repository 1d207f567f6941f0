"""A campaign of verdicts while tasks and policies change."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.engines import FakeEngine, answer
from doubles.policies import make_policy, make_rule, scored, when
from doubles.services import make_service
from doubles.serving import FakeStore, RecordingObserver, make_facts
from doubles.tasks import random_branch
from nunatak_contract.enums import Combine, OnFailure, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import TopK
from nunatak_contract.policies import Condition, Policy
from nunatak_registry import CorruptBlobError, PublishedPolicy
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.rows import PendingRow, RowOutcome
from nunatak_server.verdicts.judge import Judge, Judgement
from nunatak_server.verdicts.rules import decide

TASKS: tuple[str, ...] = ("attack", "tone", "topic", "spam")
AT_ONCE = 16
ROOM_FOR = 6
"""Little room, so that promotions evict older versions."""
DEADLINE_S = 0.02
FAULT_SHARE = 0.02
FAULTS = ("late", "sick", "broken")
COUNT = 500


@dataclass(slots=True)
class Tally:
    """The outcome of a campaign."""

    decisions: int = 0
    wrong: list[str] = field(default_factory=list[str])
    by_failure: int = 0
    blocks: int = 0
    promotions: int = 0
    evictions: int = 0
    """Versions that left memory, by hand or for others that needed the room."""


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
        self.tally = Tally()
        backbone = tiny_backbone(num_layers=2)
        branch = random_branch(backbone, TopK(num_layers=1))
        self.store, self.engine = (FakeStore(branch), DrawnEngine(self.chance))
        admission = Admission(max_requests=100, max_tokens=100_000, max_bytes=100_000)
        self.observer = RecordingObserver()
        self.bench = make_service(
            backbone,
            self.store,
            self.engine,
            admission=admission,
            observer=self.observer,
            room_for=ROOM_FOR,
        )
        self.versions = dict.fromkeys(TASKS, 0)
        self.policies = list[PublishedPolicy]()
        for task in TASKS:
            self.promote(task)
        self.change_policy()

    def promote(self, task: str) -> None:
        """Publish a version that says other things; one in ten cannot be loaded."""
        self.versions[task] += 1
        self.store.add(task, self.versions[task])
        if self.chance.random() < 0.1:
            reference = f"{task}/{self.versions[task]}"
            self.store.broken[reference] = CorruptBlobError("d" * 64, "is missing")
        self.bench.facts.invalidate()
        self.tally.promotions += 1

    def change_policy(self) -> None:
        """Publish a policy with other rules."""
        policy = drawn_policy(self.chance)
        number = len(self.policies) + 1
        self.policies.append(
            PublishedPolicy(document=policy, version=number, published_at=CREATED_AT, by="ann")
        )

    async def run(self, count: int) -> Tally:
        """Judge `count` texts."""

        async def look_up(_: str) -> PublishedPolicy:
            return self.policies[-1]

        facts = make_facts(self.store, policy=look_up)
        judge = Judge(facts=facts, service=self.bench.service, metrics=self.bench.metrics)
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                if number % 37 == 0:
                    self.promote(self.chance.choice(TASKS))
                if number % 11 == 0:
                    self.change_policy()
                    facts.invalidate()
                if number % 53 == 0:
                    self.evict()
                await self.judge(judge, f"caller-{number}")

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        self.tally.evictions = len(self.observer.evicted)
        return self.tally

    def evict(self) -> None:
        """Drop a task from memory, unless it is in use."""
        with suppress(NunatakError):
            self.bench.residency.evict(self.chance.choice(TASKS))

    async def judge(self, judge: Judge, caller: str) -> None:
        """Judge one text, and compare the verdict with the rules, which have laws of their own."""
        before = dict(self.versions)
        num_policies = len(self.policies)
        handling = Handling(default_deadline_s=DEADLINE_S, own_deadline_s=DEADLINE_S, caller=caller)
        found = await judge.judge("guard", ("a",), handling)
        answers = self.engine.answers.pop(caller, {})
        self.check(caller, found, answers)
        for task, (version, _) in answers.items():
            if not before[task] <= version <= self.versions[task]:
                self.tally.wrong.append(f"{caller}: {task}/{version} answered after a promotion")
        if not num_policies <= found.published.version <= len(self.policies):
            self.tally.wrong.append(f"{caller}: policy {found.published.version} is stale")

    def check(self, caller: str, found: Judgement, answers: Mapping[str, tuple[int, bool]]) -> None:
        """Compare one judgement with the decision by these answers."""
        policy, tally = found.published.document, self.tally
        known = {
            task: scored(task, {"yes": float(says_yes), "no": float(not says_yes)})
            for task, (_, says_yes) in answers.items()
        }
        (expected,) = decide(policy, known, ["a"])
        tally.decisions += 1
        tally.by_failure += found.is_by_failure
        tally.blocks += found.action is VerdictAction.BLOCK
        if found.action is not expected.action:
            tally.wrong.append(f"{caller}: {found.action}, not {expected.action}: {answers}")


def drawn_policy(chance: random.Random) -> Policy:
    """Return a policy with one to three rules about some of the tasks."""
    actions = (VerdictAction.FLAG, VerdictAction.BLOCK)
    rules = [
        make_rule(
            *_conditions(chance),
            name=f"rule-{number}",
            action=chance.choice(actions),
            combine=chance.choice(list(Combine)),
        )
        for number in range(chance.randint(1, 3))
    ]
    return make_policy(*rules, on_failure=chance.choice(list(OnFailure)))


def _conditions(chance: random.Random) -> Iterator[Condition]:
    for task in chance.sample(TASKS, chance.randint(1, 3)):
        yield when(task, "yes", threshold=chance.choice((0.5, None)))


async def test_no_verdict_is_wrong_under_promotions_evictions_and_failures() -> None:
    tally = await Campaign(seed=1).run(COUNT)

    assert tally.wrong == []
    assert tally.decisions == COUNT
    assert min(tally.by_failure, tally.blocks, tally.promotions, tally.evictions) > 0
