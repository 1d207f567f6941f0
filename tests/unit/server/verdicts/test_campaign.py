"""A campaign of verdicts while tasks and policies change."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from zlib import crc32

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.engines import FakeEngine, answer
from doubles.policies import decide, make_policy, make_rule, scored, when
from doubles.services import make_service
from doubles.serving import FakeStore, RecordingObserver, make_facts
from doubles.tasks import random_branch
from nunatak_contract.enums import Combine, OnFailure, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import TopK
from nunatak_contract.policies import Policy
from nunatak_registry import CorruptBlobError, PublishedPolicy
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.rows import PendingRow, RowOutcome
from nunatak_server.verdicts.judge import Judge

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
        policy, number = drawn_policy(self.chance), len(self.policies) + 1
        made = PublishedPolicy(document=policy, version=number, published_at=CREATED_AT, by="ann")
        self.policies.append(made)
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
