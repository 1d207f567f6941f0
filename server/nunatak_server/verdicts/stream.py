"""The stream: verdicts about a text while it arrives, equal to the verdict about the whole text.

Text is held back until every window that covers it is closed, and judged by all tasks of the
policy, and until no pattern can match it any more. A condition that holds in a closed window holds
in the whole text, so a block is certain at once. A condition that does not hold may still hold
later, so all else is decided at the end.

No part of a mask is released alone: text ends at the border of a word that no found span crosses. A
decision by `on_failure` is not certain while the text grows, so the text is only held.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from nunatak_contract.enums import OnFailure, PolicyMode, VerdictAction
from nunatak_contract.policies import Condition
from nunatak_registry import PublishedPolicy
from nunatak_server.errors import OverloadedError
from nunatak_server.outputs.conditions import ConditionState, FoundSpan, States, parts_words
from nunatak_server.predict.growing import Growing
from nunatak_server.predict.types import Handling, TaskFailure, TaskPrediction
from nunatak_server.scheduler.turns import Pace
from nunatak_server.verdicts.judge import Judge, Judgement
from nunatak_server.verdicts.patterns import GrowingMatches, Matches, matches_in_all, unmatched
from nunatak_server.verdicts.rules import TextDecision, decisions, failures_in, merged_spans

LEAST_GROWTH: Final = 16
"""Characters that arrive at least between two looks at the text."""
READ_AGAIN: Final = 8
"""The characters that a look reads or decides about again, over the least number of new ones."""
EARLY: Final = 0.8
"""Share of the characters that a window still needs, about, after which the next look comes.
With 0.5, real texts need five looks a window and not three. With 0.9, windows are seen later."""
IN_TIME: Final = 0.8
"""Share of the longest hold after which the open window is judged, so that its text is in time."""
LATE_FINDING: Final = "a task found something in text that was released before the task answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Judged text to show, or the label of a masked part."""

    text: str
    is_mask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedVerdict:
    """The decisions about the text so far, or about the whole text."""

    judgement: Judgement
    is_final: bool


Streamed = Released | StreamedVerdict


class VerdictStream:
    """Judges one text that arrives in chunks; only the event loop thread may use it."""

    def __init__(
        self,
        judge: Judge,
        published: PublishedPolicy,
        handling: Handling,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._judge = judge
        self._published = published
        self._handling = handling
        self._clock = clock
        policy = published.document
        self._is_enforced = policy.mode is PolicyMode.ENFORCE
        share = IN_TIME if policy.on_failure is OnFailure.ALLOW else 1.0
        delay_ms = policy.max_delay_ms
        self._max_delay_s = None if delay_ms is None else share * delay_ms / 1000
        self._growing = Growing()
        self._patterns = GrowingMatches(policy.patterns)
        self._matches: Sequence[Matches] = unmatched(policy.patterns, 1)
        self._parts, self._num_chars = [""], 0
        self._half = ""
        self.last_space = 0
        """The begin of the last white space of the text."""
        self._is_whole = self._is_over = False
        self._changed = asyncio.Event()
        self._arrivals = deque[tuple[int, float]]()
        """The end of each chunk with held text, and when it came."""
        self._released = 0
        self._masked = list[FoundSpan]()
        self._found = dict[Condition, ConditionState]()
        self._shown: object = None
        self._looks_at = 1
        self._may_expire_at = 0.0

    async def events(self, chunks: AsyncIterator[str]) -> AsyncGenerator[Streamed]:
        """Yield what is released, and verdicts; the last is the final one.

        Closing the generator withdraws the rows that wait.

        Raises:
            NunatakError: no verdict is possible, as for whole texts; or the chunks end with it.
        """
        reading = asyncio.ensure_future(self._read(chunks))
        try:
            async for event in self._events(reading):
                yield event
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading

    async def _read(self, chunks: AsyncIterator[str]) -> None:
        try:
            async for chunk in chunks:
                self.add(chunk)
            self._parts.append(self._half)
            self._is_whole = True
        finally:
            self._changed.set()

    def add(self, chunk: str) -> None:
        """Take the next chunk, which may end with one half of a surrogate pair."""
        text, self._half = self._half + chunk, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        if any("\ud800" <= it <= "\udfff" for it in text):
            # The halves of a pair become one character.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if text:
            self._find_space(text)
            self._parts.append(text)
            self._num_chars += len(text)
            self._arrivals.append((self._num_chars, self._clock()))
            self._changed.set()

    def _find_space(self, chunk: str) -> None:
        """Find the last white space in a chunk alone, because a text may have very many chunks."""
        end = next((it for it in range(len(chunk), 0, -1) if chunk[it - 1].isspace()), 0)
        begin = end - (len(chunk[:end]) - len(chunk[:end].rstrip()))
        if end and (begin or not self._parts[-1][-1:].isspace()):
            self.last_space = self._num_chars + begin

    @property
    def _text(self) -> str:
        """The text so far, joined once for each look, because chunks may be single characters."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    async def _events(self, reading: asyncio.Future[None]) -> AsyncGenerator[Streamed]:
        while not self._is_over:
            is_expired = await self._until_due(reading)
            events = self._conclude() if self._is_whole else self._step(is_expired=is_expired)
            async for event in events:
                yield event

    async def _step(self, *, is_expired: bool) -> AsyncGenerator[Streamed]:
        if is_expired and self._is_strict:
            yield self._end(self._judge.late(self._published, self._text))
            return
        judgement = await self._look(takes_open=is_expired)
        if judgement is None:
            return
        decision = judgement.decisions[0]
        # What holds in an open window may not hold once more words are there.
        is_certain = not (is_expired or decision.is_by_failure)
        if judgement.action is VerdictAction.BLOCK and is_certain:
            yield self._end(judgement)
            return
        shown = judgement.decided, [it.rule.name for it in decision.applied]
        if is_certain and shown != self._shown:
            self._shown = shown
            yield StreamedVerdict(judgement=judgement, is_final=False)
        growing = self._growing
        end = len(growing.text)
        # A window about which a task failed stays, because the task is asked again about held text.
        is_held = self._is_strict and bool(judgement.failures)
        if not is_held and not self._has_late_finding(decision):
            covered = self._patterns.settled(growing.text, growing.covered)
            for piece in self._release(decision, end if is_expired else covered):
                yield piece
        if is_expired and growing.has_closed:
            # A look without the open window records what these windows say, and forgets them.
            self._looks_at = end
            return
        # A part of what is judged and still held, because each look decides about all of it.
        again = (growing.covered - self._released) // READ_AGAIN
        self._looks_at = max(self._looks_at, end + again)

    async def _conclude(self) -> AsyncGenerator[Streamed]:
        self._growing.text, self._growing.is_whole = self._text, True
        judgement = self._with_findings(await self._ask())
        if self._has_late_finding(judgement.decisions[0]):
            judgement = self._judge.late(self._published, self._text, LATE_FINDING)
        for piece in self._release(judgement.decisions[0], len(self._text)):
            yield piece
        yield self._end(judgement)

    @property
    def _on_failure(self) -> OnFailure:
        return self._published.document.on_failure

    @property
    def _is_strict(self) -> bool:
        """Whether text without a whole answer is held, and at last blocked."""
        return self._is_enforced and self._on_failure is OnFailure.BLOCK

    def _end(self, judgement: Judgement) -> StreamedVerdict:
        self._is_over = True
        self._judge.observe(judgement)
        return StreamedVerdict(judgement=judgement, is_final=True)

    async def _until_due(self, reading: asyncio.Future[None]) -> bool:
        """Wait until the text is whole, has grown enough, or was held too long; say if the last."""
        while True:
            if reading.done():
                reading.result()
            if self._is_whole:
                return False
            expires_at = self._expires_at()
            left_s = None if expires_at is None else expires_at - self._clock()
            if expires_at is not None and left_s is not None and left_s <= 0:
                self._may_expire_at = self._clock() + (self._max_delay_s or 0)
                return True
            if self.last_space >= self._looks_at:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _expires_at(self) -> float | None:
        while self._arrivals and self._arrivals[0][0] <= self._released:
            self._arrivals.popleft()
        if self._max_delay_s is None or not self._arrivals:
            return None
        if not self._is_strict and self.last_space <= self._released:
            # Only a part of a word is held, which no look can release.
            return None
        return max(self._arrivals[0][1] + self._max_delay_s, self._may_expire_at)

    async def _look(self, *, takes_open: bool) -> Judgement | None:
        """Judge the windows that are closed since the last look; None if there is no answer yet."""
        growing = self._growing
        end = self.last_space
        growing.grow(self._text[:end], takes_open=takes_open)
        self._looks_at = end + LEAST_GROWTH
        if not growing.text.strip():
            return None
        try:
            judgement = await self._ask()
        except OverloadedError:
            if not takes_open:
                return None  # The text waits, as it would for its turn.
            judgement = self._judge.late(self._published, growing.text)
        # A part of what is read again, so that a text without a plain space costs no square.
        again = growing.num_chars_again // READ_AGAIN
        missing = int(EARLY * growing.num_missing_chars)
        self._looks_at = end + max(LEAST_GROWTH, missing, again)
        return self._with_findings(judgement)

    async def _ask(self) -> Judgement:
        growing, published = self._growing, self._published
        return await self._judge.ask(
            published, (growing.text,), self._handling, growing=growing, match=self._match
        )

    async def _match(self, pace: Pace) -> Sequence[Matches]:
        growing, patterns = self._growing, self._published.document.patterns
        # What holds if the patterns are late.
        self._matches = (self._patterns.known,)
        if growing.is_whole:
            self._matches = await matches_in_all(patterns, (growing.text,), pace)
        else:
            found = await self._patterns.grow(
                growing.text, pace, released=self._released, takes_open=growing.takes_open
            )
            self._matches = (found,)
        return self._matches

    def _with_findings(self, judgement: Judgement) -> Judgement:
        """Return a judgement about the text so far with what was found in it before."""
        answers = {it: self._with_earlier(answer) for it, answer in judgement.answers.items()}
        policy = self._published.document
        return replace(
            judgement,
            answers=answers,
            decisions=tuple(decisions(policy, answers, (self._growing.text,), self._matches)),
            failures=failures_in(policy, answers),
        )

    def _with_earlier(self, answer: TaskPrediction | TaskFailure) -> TaskPrediction | TaskFailure:
        """Return an answer about the held text with what was found in the released text.

        A task that fails keeps its findings. An answer about the whole text replaces them.
        """
        if isinstance(answer, TaskFailure):
            return replace(answer, states=(self._kept(answer),))
        if self._growing.is_whole:
            return answer
        (states,) = answer.states
        merged = {it: self._merged(self._found.get(it), state) for it, state in states.items()}
        if not self._growing.takes_open:
            self._found |= merged
        return replace(answer, states=(merged,))

    def _kept(self, failure: TaskFailure) -> States:
        (now,) = failure.states or ({},)
        kept = dict[Condition, ConditionState]()
        for it in self._published.document.conditions:
            both = self._found.get(it), now.get(it)
            states = [state for state in both if state is not None and state.holds]
            if it.task == failure.reference and states:
                spans = dict.fromkeys(span for state in states for span in state.spans)
                kept[it] = replace(states[-1], spans=tuple(spans))
        if not self._growing.is_whole:
            if not self._growing.takes_open:
                self._found |= kept
            return kept
        return {it: replace(own, spans=(*self._masked, *own.spans)) for it, own in kept.items()}

    def _merged(self, earlier: ConditionState | None, state: ConditionState) -> ConditionState:
        if earlier is None or not earlier.holds:
            return state
        scores = [it.score for it in (earlier, state) if it.score is not None]
        # One released mask says that there are masks, as many would cost each look more.
        before = islice((it for it in earlier.spans if it.end <= self._released), 1)
        spans = tuple(dict.fromkeys((*before, *state.spans)))
        return replace(state, holds=True, score=max(scores, default=None), spans=spans)

    def _spans(self, decision: TextDecision, *, applied: bool) -> list[FoundSpan]:
        if not self._is_enforced:
            return []
        masking = (it for it in decision.states if it.rule.action is VerdictAction.MASK)
        return [span for it in masking if bool(it.applies) is applied for span in it.spans]

    def _has_late_finding(self, decision: TextDecision) -> bool:
        """Return whether a mask belongs into released text; never if the policy lets that pass."""
        return self._on_failure is OnFailure.BLOCK and any(
            span.start < self._released and not self._is_masked(span)
            for span in self._spans(decision, applied=True)
        )

    def _is_masked(self, span: FoundSpan) -> bool:
        # Masks lie in order and apart, so one of them alone can hold the span.
        place = bisect_right(self._masked, span.start, key=lambda it: it.start)
        return place > 0 and span.end <= self._masked[place - 1].end

    def _release(self, decision: TextDecision, covered: int) -> Iterator[Released]:
        """Release text up to a place before which nothing can change."""
        if self._is_enforced and decision.action is VerdictAction.BLOCK:
            return
        text = self._growing.text
        spans = merged_spans(
            replace(it, start=max(it.start, self._released))
            for it in self._spans(decision, applied=True)
            if it.end > self._released
        )
        crossed = list(spans)
        if not self._growing.is_whole:
            doubtful = self._spans(decision, applied=False)
            crossed += (replace(it, end=len(text) + 1) for it in doubtful)
        end = _border(text, covered, crossed)
        for span in spans:
            if span.start >= end:
                break
            yield from self._plain(text, span.start)
            yield Released(text=f"[{span.label}]", is_mask=True)
            self._masked.append(span)
            self._released = span.end
        yield from self._plain(text, end)
        self._growing.release(self._released)

    def _plain(self, text: str, end: int) -> Iterator[Released]:
        if end > self._released:
            yield Released(text=text[self._released : end])
            self._released = end


def _border(text: str, end: int, spans: Sequence[FoundSpan]) -> int:
    """Return the last border of words at or before `end` that no span crosses."""
    while end:
        begins = [it.start for it in spans if it.start < end < it.end]
        if begins:
            end = min(begins)
        elif parts_words(text, end):
            break
        else:
            end -= 1
    return end
