"""The judge: asks the tasks of a policy about texts, and decides as soon as a block is certain."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from nunatak_contract.enums import OnFailure, OnLong, PolicyMode, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.policies import Policy
from nunatak_registry import PublishedPolicy
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.growing import Growing
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    Handling,
    LiteralText,
    PredictionRequest,
    StageTimes,
    TaskFailure,
    TaskPrediction,
)
from nunatak_server.scheduler.rows import Priority
from nunatak_server.scheduler.turns import Pace, within
from nunatak_server.telemetry.metrics import Metrics, notes
from nunatak_server.verdicts.patterns import Matches, matches_in_all, unmatched
from nunatak_server.verdicts.rules import (
    Answers,
    TextDecision,
    blocks_for_certain,
    decisions,
    failures_in,
    merged_spans,
    strongest,
)

# Every part of a long text is judged, whatever the task does with long texts elsewhere.
OPTIONS: Final = LiteralText(on_long=OnLong.WINDOWS)
LATE: Final = ("deadline_exceeded", "deadline_too_short")
"""Codes of failures for want of time."""


def handling_for(policy: Policy, handling: Handling) -> Handling:
    """Return how a policy handles a request.

    A late task weakens a policy that allows on failure. So a caller cannot make its tasks late: no
    deadline is shorter than the policy's own, and no priority lower than the normal one.
    """
    limit_s = handling.default_deadline_s
    if policy.deadline_ms is not None:
        limit_s = policy.deadline_ms / 1000
    handling = replace(handling, default_deadline_s=limit_s)
    if policy.on_failure is not OnFailure.ALLOW:
        return handling
    return replace(
        handling,
        own_deadline_s=max(handling.deadline_s, limit_s),
        priority=min(handling.priority, Priority.NORMAL, key=lambda it: it.rank),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The decisions of a policy about the texts of a request."""

    published: PublishedPolicy
    decisions: tuple[TextDecision, ...]
    answers: Answers
    failures: tuple[TaskFailure, ...]
    timings: StageTimes
    unread: NunatakError | None
    """Why the patterns have not read the texts; None if they have."""

    @property
    def decided(self) -> VerdictAction:
        return strongest(it.action for it in self.decisions)

    @property
    def action(self) -> VerdictAction:
        """What to do: the decision, but `allow` in a dry run."""
        is_dry = self.published.document.mode is PolicyMode.DRY_RUN
        return VerdictAction.ALLOW if is_dry else self.decided

    @property
    def is_by_failure(self) -> bool:
        """Whether only `on_failure` has decided the strongest action of all texts."""
        decided = self.decided
        deciding = [it for it in self.decisions if it.action is decided]
        return bool(deciding) and all(it.is_by_failure for it in deciding)

    @property
    def message(self) -> str | None:
        """The message of the first rule with the decided action, or why `on_failure` decides.

        None if no rule has a message and the rules decide.
        """
        decided = self.decided
        rules = (found.rule for it in self.decisions for found in it.applied)
        said = next((it.message for it in rules if it.action is decided and it.message), None)
        if said is not None or not self.is_by_failure:
            return said
        failed = {it.reference: it.error for it in self.failures}
        if self.unread is not None:
            failed["its patterns"] = self.unread
        if not failed:
            return "what the rules have found cannot be masked"
        is_late = all(it.code in LATE for it in failed.values())
        return f"no answer{' in time' if is_late else ''} from {', '.join(failed)}"


def reason_of(judgement: Judgement) -> str:
    """Return the reason of a decision for a person: the message, or the names of the rules."""
    name = judgement.published.document.name
    if judgement.message is not None:
        return (
            f"policy {name!r}: {judgement.message}"
            if judgement.is_by_failure
            else judgement.message
        )
    rules = (found.rule for it in judgement.decisions for found in it.applied)
    names = dict.fromkeys(it.name for it in rules if it.action is judgement.decided)
    return f"policy {name!r}: {', '.join(names) or 'no rule applies'}"


def verdict_fields(
    judgement: Judgement,
    inputs: str | Sequence[str] | None,
    problem: Callable[[NunatakError], object],
) -> dict[str, Any]:
    """Return a verdict in the wire format; `problem` says what a caller learns of an error.

    Without `inputs`, the texts are those of a call, and each rule stands once.
    """
    published, sent = judgement.published, [inputs] if isinstance(inputs, str) else inputs
    decided = enumerate(judgement.decisions)
    applied = [(index, found) for index, decision in decided for found in decision.applied]
    if sent is None:
        best = sorted(applied, key=lambda it: it[1].score)
        applied = [*{found.rule.name: (None, found) for _, found in best}.values()]
    texts = masks = None
    if sent is not None and judgement.action is VerdictAction.MASK:
        decisions = zip(judgement.decisions, sent, strict=True)
        masked = [text if it.masked is None else it.masked for it, text in decisions]
        texts = masked[0] if isinstance(inputs, str) else masked
        masks = [merged_spans(it.masking) for it in judgement.decisions]
    return {
        "policy": published.document.name,
        "version": published.version,
        "mode": published.document.mode,
        "action": judgement.action,
        "decided": judgement.decided,
        "by_failure": judgement.is_by_failure,
        "message": judgement.message,
        "rules": [
            {
                "rule": found.rule.name,
                "action": found.rule.action,
                "message": found.rule.message,
                "input": index,
                "score": found.score,
            }
            for index, found in applied
        ],
        "texts": texts,
        "masks": masks,
        "messages": None,
        "tasks": [
            f"{it.task}/{it.version}"
            for it in judgement.answers.values()
            if isinstance(it, TaskPrediction)
        ],
        "failures": [
            {"reference": it.reference, "error": problem(it.error)} for it in judgement.failures
        ],
    }


class Judge:
    """Gives verdicts; only the event loop thread may use it."""

    def __init__(self, *, facts: KnownFacts, service: PredictionService, metrics: Metrics) -> None:
        self._facts = facts
        self._metrics = metrics
        self._service = service

    async def judge(
        self, policy: str, texts: tuple[str, ...], handling: Handling, *, stops_early: bool = True
    ) -> Judgement:
        """Return the decisions of a policy about texts; without texts, nothing is found.

        A task that fails or is late leaves its conditions unknown. If the whole request is late,
        all conditions are unknown. `stops_early` tells whether the other tasks may stay unasked
        once a block is certain.

        Raises:
            NunatakError: `policy_not_found` and others of `KnownFacts.policy`.
        """
        published, left = await self.find(policy, handling)
        judgement = await self.ask(published, texts, left, stops_early=stops_early)
        self.observe(judgement)
        return judgement

    def observe(self, judgement: Judgement) -> None:
        """Count one verdict by its decision and by the rules that apply, also in a dry run."""
        policy, found = judgement.published.document, judgement.decisions
        by = "failure" if judgement.is_by_failure else "rules"
        label, mode = self._metrics.bounded("policy", policy.name), policy.mode.value
        self._metrics.count("verdicts", label, mode, judgement.decided.value, by)
        rules = {it.rule.name: it.rule.action.value for own in found for it in own.applied}
        for name, action in rules.items():
            rule = self._metrics.bounded("rule", name, within=label)
            self._metrics.count("verdict_rules", label, mode, rule, action)
        notes().verdict = {
            "policy": judgement.published.reference,
            "action": judgement.action.value,
            "rules": [*rules],
        }

    async def find(self, policy: str, handling: Handling) -> tuple[PublishedPolicy, Handling]:
        """Return a policy whose tasks the caller may ask, and the handling with the time left.

        Raises:
            NunatakError: `policy_not_found` and others of `KnownFacts.policy`.
        """
        begun, own_s = time.monotonic(), handling.own_deadline_s
        look_up = self._facts.policy(policy, handling.caller, tasks=handling.tasks)
        found = await within(handling.deadline_s, look_up, late=DeadlineExceededError)
        left_s = None if own_s is None else max(0.0, own_s + begun - time.monotonic())
        return found, replace(handling, own_deadline_s=left_s)

    def late(self, published: PublishedPolicy, text: str, *problem: str) -> Judgement:
        """Return the decision about a text about which tasks and patterns are late."""
        policy = published.document
        error = DeadlineExceededError(*problem)
        answers = _all_failed(policy.references, {}, error)
        matches = unmatched(policy.patterns, 1)
        found = decisions(policy, answers, (text,), matches)
        return _judged(published, answers, [], matches, found, error)

    async def ask(
        self,
        published: PublishedPolicy,
        texts: tuple[str, ...],
        handling: Handling,
        *,
        stops_early: bool = True,
        growing: Growing | None = None,
        is_call: bool = False,
        match: Callable[[Pace], Awaitable[Sequence[Matches]]] | None = None,
    ) -> Judgement:
        """Return the decisions of a policy about texts, or about what is new of a growing text.

        Patterns and tasks have the time of one deadline, patterns first. `match` finds the matches
        of a growing text. A call to a language model may have more texts than other requests. In a
        dry run, a refusal of the whole request is the failure of each task and pattern: it stops
        nothing.
        """
        policy = published.document
        answers, times = dict[str, TaskPrediction | TaskFailure](), list[StageTimes]()
        matches: Sequence[Matches] = unmatched(policy.patterns, len(texts))
        if not texts:
            return _judged(published, answers, times, matches, ())
        request = PredictionRequest(
            references=policy.references,
            inputs=texts,
            handling=handling_for(policy, handling),
            options=OPTIONS,
            conditions=policy.conditions,
            growing=growing,
            is_call=is_call,
        )
        try:
            # Patterns read no text that the server refuses, such as one that is too long.
            pace = self._service.begin(request)
            matches = await (match or partial(matches_in_all, policy.patterns, texts))(pace)
            async with aclosing(self._service.stream(request, pace)) as results:
                async for streamed in results:
                    result, refusal = streamed.result, streamed.refusal
                    if refusal is not None and not isinstance(refusal, DeadlineExceededError):
                        # The other tasks were asked before a part of the request was refused.
                        raise refusal
                    answers[result.reference] = result
                    times.append(streamed.timings)
                    is_last = len(answers) == len(policy.references)
                    if (
                        stops_early
                        and not is_last
                        and blocks_for_certain(policy, answers, matches, latest=result.reference)
                    ):
                        break
        except NunatakError as error:
            is_dry = policy.mode is PolicyMode.DRY_RUN
            if not (is_dry or isinstance(error, DeadlineExceededError)):
                raise
            answers = _all_failed(policy.references, answers, error)
            found = decisions(policy, answers, texts, matches)
            return _judged(published, answers, times, matches, found, error)
        decided = list[TextDecision]()
        for decision in decisions(policy, answers, texts, matches):
            decided.append(decision)
            await pace.count(len(policy.rules))
        return _judged(published, answers, times, matches, decided)


def _judged(
    published: PublishedPolicy,
    answers: Answers,
    times: list[StageTimes],
    matches: Sequence[Matches],
    decided: Iterable[TextDecision],
    problem: NunatakError | None = None,
) -> Judgement:
    return Judgement(
        published=published,
        decisions=tuple(decided),
        answers=answers,
        failures=failures_in(published.document, answers),
        timings=StageTimes.slowest(times),
        unread=None if all(it.is_complete for own in matches for it in own.values()) else problem,
    )


def _all_failed(
    references: tuple[str, ...],
    answers: Mapping[str, TaskPrediction | TaskFailure],
    error: NunatakError,
) -> dict[str, TaskPrediction | TaskFailure]:
    return {
        text: answers.get(text) or TaskFailure(reference=text, error=error) for text in references
    }
