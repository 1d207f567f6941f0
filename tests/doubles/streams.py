"""Streams of verdicts on an engine without a model, next to the verdicts about whole texts."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any
from zlib import crc32

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.engines import FakeEngine, answer
from doubles.leases import until
from doubles.policies import UNREAD_PASSES, classifier, make_policy, make_rule, tagger, when
from doubles.services import SETTINGS, make_service
from doubles.serving import FakeStore, ManualClock, make_facts
from doubles.tasks import random_branch
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_contract.enums import Combine, OnFailure, VerdictAction
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import TopK
from nunatak_contract.names import TaskReference
from nunatak_contract.policies import Policy
from nunatak_model import Encoding
from nunatak_registry import PublishedPolicy
from nunatak_server.errors import TaskUnhealthyError
from nunatak_server.predict.types import Handling
from nunatak_server.scheduler.admission import Admission
from nunatak_server.scheduler.rows import PendingRow, RowOutcome
from nunatak_server.verdicts.judge import Judge, Judgement
from nunatak_server.verdicts.rules import mask
from nunatak_server.verdicts.stream import Released, Streamed, StreamedVerdict, VerdictStream

NAMES = tagger("O", "B-X", "I-X", "B-Y", "I-Y")
TASKS: dict[str, tuple[HeadRecord, int]] = {
    "attack": (classifier("no", "yes"), 12),
    "tone": (classifier("calm", "sharp"), 16),
    "names": (NAMES, 12),
    "places": (NAMES, 20),
}
"""The head and the largest length of each task."""
HANDLING = Handling(default_deadline_s=60)
WORDS = "the report was written by ada lovelace in london and i saw a copy of it"
LOOPS = 5
"""Turns of the event loop between two chunks, for the looks at the text."""


@dataclass(slots=True)
class Said:
    """What has arrived at a stream, and what the stream had released by then."""

    admission: Admission
    arrived: str = ""
    released: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    async def recorded(self, chunks: Sequence[str]) -> AsyncGenerator[str]:
        for chunk in chunks:
            self.arrived += chunk
            yield chunk
            await self.settle()

    async def settle(self) -> None:
        """Wait until the stream has looked at the text, if it wants to."""
        for _ in range(LOOPS):
            await asyncio.sleep(0)
        await until(lambda: not self.admission.requests.total)


class HashingEngine(FakeEngine):
    """Answers each row by its tokens alone, as a model does; sometimes a task is sick."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = list[tuple[str, Encoding]]()
        self.sick = frozenset[str]()
        self.is_calm = self.finds_names = False
        self.denied = set[tuple[str, Encoding]]()
        """Windows in which a classifier finds its second label."""

    def outcome_of(self, row: PendingRow) -> RowOutcome:
        if row.task in self.sick:
            return TaskUnhealthyError(row.task, row.version, "is sick")
        self.computed.append((row.task, row.spec.encoding))
        logits = answer_of(row.task, row.spec.encoding)
        if self.is_calm:
            logits = [4.0 * (not it % 5) for it in range(len(logits))]
        if (row.task, row.spec.encoding) in self.denied:
            logits = [0.0, 4.0]
        if self.finds_names and row.task == "names":
            logits = [0.0, 4.0, 0.0, 0.0, 0.0] * row.spec.encoding.num_tokens
        return answer(*logits)


def answer_of(task: str, encoding: Encoding) -> list[float]:
    """Return logits that depend on all tokens of a window."""
    head, _ = TASKS[task]
    seed = crc32(repr((task, encoding.token_ids)).encode())
    if head is not NAMES:
        return [0.0, 4.0] if seed % 40 == 0 else [4.0, 0.0]
    found = list[list[float]]()
    for token in encoding.token_ids:
        chance = crc32(repr((task, token)).encode()) % 12 + seed % 3
        label = chance if chance < len(head.labels) else 0
        found.append([4.0 if it == label else 0.0 for it in range(len(head.labels))])
    return list(chain.from_iterable(found))


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a stream has said."""

    events: list[Streamed] = field(default_factory=list[Streamed])

    @property
    def text(self) -> str:
        return "".join(it.text for it in self.events if isinstance(it, Released))

    @property
    def final(self) -> Judgement:
        last = self.events[-1]
        assert isinstance(last, StreamedVerdict)
        assert last.is_final
        return last.judgement

    def check(self, whole: Judgement, text: str) -> None:
        """Check that a stream says what is said about the whole text, and leaks nothing."""
        (decision,) = whole.decisions
        if whole.action is VerdictAction.BLOCK:
            assert self.final.action is VerdictAction.BLOCK
            assert mask(text, decision.masking).startswith(self.text)
        else:
            assert essence(self.final) == essence(whole)
            assert self.text == (text if decision.masked is None else decision.masked)


class StreamBench:
    """A judge over tasks in memory, one tokenizer family and one policy."""

    def __init__(
        self, family: TokenizerFamily, policy: Policy, *, answer_cache_bytes: int = 0
    ) -> None:
        backbone = replace(tiny_backbone(num_layers=2), tokenizer=served(family))
        branch = random_branch(backbone, TopK(num_layers=1))
        self.store, self.engine, self.clock = FakeStore(branch), HashingEngine(), ManualClock()
        self.admission = Admission(max_requests=10, max_tokens=100_000, max_bytes=100_000)
        self.bench = make_service(
            backbone,
            self.store,
            self.engine,
            admission=self.admission,
            settings=SETTINGS.model_copy(
                update={"max_text_chars": 10_000, "answer_cache_bytes": answer_cache_bytes}
            ),
        )
        self.policy = policy
        for task in TASKS:
            self.publish(task)
        self.judge = Judge(
            facts=make_facts(self.store, policy=self._look_up),
            service=self.bench.service,
            metrics=self.bench.metrics,
        )

    def publish(self, task: str, version: int = 1, *, seed: int | None = None) -> TaskManifest:
        """Let a task mean this version, from its next look-up on."""
        head, max_length = TASKS[task]
        reference = self.store.add(task, version, seed=seed)
        changed = {"head": head, "max_length": max_length}
        manifest = self.store.manifests[reference].model_copy(update=changed)
        self.store.manifests[reference] = manifest
        self.store.manifests[TaskReference(task=task, version=version)] = manifest
        return manifest

    async def _look_up(self, name: str) -> PublishedPolicy:
        assert name == self.policy.name
        return self.published

    @property
    def published(self) -> PublishedPolicy:
        return PublishedPolicy(document=self.policy, version=1, published_at=CREATED_AT, by="ann")

    async def whole(self, text: str) -> Judgement:
        return await self.judge.judge(self.policy.name, (text,), HANDLING, stops_early=False)

    def stream(self) -> VerdictStream:
        return VerdictStream(self.judge, self.published, HANDLING, clock=self.clock)

    async def windows(self, text: str, task: str) -> list[Encoding]:
        """Return the windows of a whole text that a task reads, in order."""
        self.engine.computed.clear()
        await self.whole(text)
        found = [encoding for asked, encoding in self.engine.computed if asked == task]
        self.engine.computed.clear()
        return list(dict.fromkeys(found))

    async def streamed(self, chunks: Sequence[str] | AsyncGenerator[str]) -> Outcome:
        """Judge chunks one by one with time for a look at each, or as they come."""
        if not isinstance(chunks, AsyncGenerator):
            chunks = Said(self.admission).recorded(chunks)
        async with aclosing(self.stream().events(chunks)) as events:
            return Outcome(events=[event async for event in events])


def guard(
    on_failure: OnFailure = OnFailure.BLOCK,
    *,
    reads_all: bool = False,
    **fields: Any,  # noqa: ANN401 - fields of a policy
) -> Policy:
    """Return a policy that blocks, masks and flags; unread characters pass unless it reads all."""
    rules = (
        make_rule(when("attack", "yes", threshold=0.5), name="attack"),
        make_rule(when("names", "X", "Y"), name="names", action=VerdictAction.MASK),
        make_rule(
            when("places", "X"),
            when("tone", "sharp", threshold=0.5),
            name="both",
            action=VerdictAction.MASK,
            combine=Combine.ALL,
        ),
        make_rule(when("tone", "sharp"), name="tone", action=VerdictAction.FLAG),
    )
    unjudged = frozenset() if reads_all else UNREAD_PASSES
    return make_policy(*rules, on_failure=on_failure, unjudged=unjudged, **fields)


def divided(text: str, chance: random.Random, *, mean: int) -> list[str]:
    """Divide a text at random places, also inside words and pairs of surrogates."""
    units = text.encode("utf-16-le", "surrogatepass")
    ends = sorted(chance.sample(range(1, len(units) // 2), k=(len(units) // 2 - 1) // mean))
    bounds = [0, *(2 * it for it in ends), len(units)]
    pairs = pairwise(bounds)
    return [units[begin:end].decode("utf-16-le", "surrogatepass") for begin, end in pairs]


def essence(judgement: Judgement) -> tuple[object, ...]:
    """Return all that a verdict says."""
    (decision,) = judgement.decisions
    applied = {it.rule.name: (it.score, it.spans) for it in decision.applied}
    failures = {it.reference: it.error.code for it in judgement.failures}
    return judgement.action, judgement.is_by_failure, decision.masked, applied, failures


def harmless(bench: StreamBench, *, num_words: int = 60) -> str:
    """Return a text about which no task finds anything from now on."""
    bench.engine.is_calm = True
    return " ".join(random.Random(1).choices(WORDS.split(), k=num_words))


def by_word(text: str) -> list[str]:
    return [f"{it} " for it in text.split(" ")[:-1]] + text.split(" ")[-1:]
