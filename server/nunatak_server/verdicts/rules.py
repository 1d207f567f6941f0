"""Rules: the states of conditions become the decision about a text.

A condition holds, does not hold, or is unknown, because its task has not answered. A pattern is a
condition that is always known. Rules combine conditions in Kleene's logic of three values: a rule
is unknown only if the unknown conditions could change it. The decision of the known rules stands if
no unknown rule could change it. Otherwise the policy's `on_failure` decides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from nunatak_contract.enums import Combine, OnFailure, UnjudgedPart, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_server.outputs.conditions import UNKNOWN, ConditionState, FoundSpan
from nunatak_server.predict.types import TaskFailure, TaskPrediction
from nunatak_server.verdicts.patterns import Matches

Answers = Mapping[str, TaskPrediction | TaskFailure]
"""The answers of tasks by reference. A task whose answer is not there yet is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """Whether a rule applies to a text; None if unknown conditions could change it."""

    rule: Rule
    applies: bool | None
    score: float
    """Of the conditions with a score: the largest for `any`, the smallest for `all`."""
    spans: tuple[FoundSpan, ...]
    is_complete: bool
    """Whether the answers decide about all labels of all conditions."""

    def could_change(self, action: VerdictAction) -> bool:
        if self.rule.action is VerdictAction.MASK and action is VerdictAction.MASK:
            # Another span would change the masked text.
            return self.applies is None or (self.applies and not self.is_complete)
        return self.applies is None and self.rule.action.strength > action.strength


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecision:
    action: VerdictAction
    states: tuple[RuleState, ...]
    """Of the rules with a category, or of which something holds or is unknown, in their order."""
    masked: str | None = None
    """The text without the found parts; None unless the action is `mask`."""
    is_by_failure: bool = False
    """Whether `on_failure` has decided."""

    @property
    def applied(self) -> tuple[RuleState, ...]:
        return tuple(it for it in self.states if it.applies)

    @property
    def masking(self) -> Iterator[FoundSpan]:
        masking = (it for it in self.applied if it.rule.action is VerdictAction.MASK)
        return (span for it in masking for span in it.spans)


def combine(rule: Rule, states: Sequence[ConditionState]) -> RuleState:
    """Return whether a rule applies, from the states of its conditions.

    A rule that masks, and finds nothing to mask, is unknown. With `any`, it has to mask what each
    condition finds, and a version without spans does not say where that is.
    """
    values = [state.holds for state in states]
    applies = any_of(values) if rule.combine is Combine.ANY else all_of(values)
    spans = tuple(span for state in states if state.holds for span in state.spans)
    if applies and rule.action is VerdictAction.MASK and not spans:
        applies = None
    has_places = not _masks_each(rule) or all(it.spans for it in states if it.holds)
    scores = [state.score for state in states if state.score is not None]
    pick = max if rule.combine is Combine.ANY else min
    return RuleState(
        rule=rule,
        applies=applies,
        score=pick(scores, default=0.0),
        spans=spans,
        is_complete=has_places and all(state.is_complete for state in states),
    )


def _masks_each(rule: Rule) -> bool:
    return rule.action is VerdictAction.MASK and rule.combine is Combine.ANY


def any_of(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return True if True in found else None if None in found else False


def all_of(values: Iterable[bool | None]) -> bool | None:
    found = set(values)
    return False if False in found else None if None in found else True


def decisions(
    policy: Policy, answers: Answers, texts: Sequence[str], matches: Sequence[Matches]
) -> Iterator[TextDecision]:
    """Yield the decision about each text. Tasks without an answer count as failed.

    `matches` are those of the policy's patterns in each text.
    """
    for index, (text, own) in enumerate(zip(texts, matches, strict=True)):
        yield _decide(policy, tuple(_states(policy, answers, index, own)), text)


def blocks_for_certain(
    policy: Policy, answers: Answers, matches: Sequence[Matches], *, latest: str
) -> bool:
    """Return whether a rule with the latest answer blocks, whatever the other tasks answer."""
    return any(
        _holds(policy, rule, answers, index, own, latest)
        for rule in policy.rules
        if rule.action is VerdictAction.BLOCK and latest in {it.task for it in rule.conditions}
        for index, own in enumerate(matches)
    )


def _holds(
    policy: Policy, rule: Rule, answers: Answers, text: int, matches: Matches, latest: str
) -> bool:
    is_all = rule.combine is Combine.ALL
    # What earlier answers say was looked at when they came.
    asked = (it for it in rule.conditions if is_all or it.task == latest)
    matched = (matches[it].holds for it in rule.patterns)
    values = chain(matched, (find(policy, it, answers, text).holds for it in asked))
    return all(values) if is_all else any(values)


def mask(text: str, spans: Iterable[FoundSpan]) -> str:
    """Return a text with its spans replaced by their labels, such as `[PERSON]`."""
    parts, place = list[str](), 0
    for span in merged_spans(spans):
        parts += (text[place : span.start], f"[{span.label}]")
        place = span.end
    return "".join((*parts, text[place:]))


def merged_spans(spans: Iterable[FoundSpan]) -> list[FoundSpan]:
    """Return spans in order.

    Overlapping spans become one, with the label of the span that begins first. If several spans
    begin there, the longest of them gives the label.
    """
    merged = list[FoundSpan]()
    for span in sorted(spans, key=lambda it: (it.start, -it.end, it.label)):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = FoundSpan(start=last.start, end=max(last.end, span.end), label=last.label)
        else:
            merged.append(span)
    return merged


def strongest(actions: Iterable[VerdictAction]) -> VerdictAction:
    """Return the strongest action; `allow` without any."""
    return max(actions, key=lambda it: it.strength, default=VerdictAction.ALLOW)


def find(policy: Policy, condition: Condition, answers: Answers, text: int) -> ConditionState:
    """Return what the answers say about a condition and the text with this index.

    A task that has failed, that lacks a label of the condition, or that has not read all text,
    decides the condition only if the condition holds. The policy may let unread characters pass.
    """
    answer = answers.get(condition.task)
    if answer is None or not answer.states:
        return UNKNOWN
    state = answer.states[text].get(condition, UNKNOWN)
    is_read = not state.num_unread or UnjudgedPart.UNREAD in policy.unjudged
    if isinstance(answer, TaskPrediction) and state.misfit is None and is_read:
        return state
    return replace(state, is_complete=False) if state.holds else UNKNOWN


def failures_in(policy: Policy, answers: Answers) -> tuple[TaskFailure, ...]:
    """Return why conditions have no answer that decides them, once for each task reference."""
    failures = dict[str, TaskFailure]()
    for rule in policy.rules:
        for condition in rule.conditions:
            answer = answers.get(condition.task)
            if isinstance(answer, TaskFailure):
                failures[condition.task] = answer
            elif answer is not None and (error := _error_of(policy, rule, condition, answer)):
                failures[condition.task] = TaskFailure(
                    reference=condition.task, error=error, task=answer.task
                )
    return tuple(failures.values())


def _error_of(
    policy: Policy, rule: Rule, condition: Condition, answer: TaskPrediction
) -> NunatakError | None:
    task, version = answer.task, answer.version
    states = [states.get(condition, UNKNOWN) for states in answer.states]
    misfit = next((it.misfit for it in states if it.misfit is not None), None)
    if _masks_each(rule) and any(it.holds and not it.spans for it in states):
        misfit = f"a {answer.head} task finds nothing that a rule can mask"
    if misfit is not None:
        return NunatakError("rule_unanswerable", task=task, version=version, reason=misfit)
    num_unread = max((it.num_unread for it in states), default=0)
    if num_unread and UnjudgedPart.UNREAD not in policy.unjudged:
        return NunatakError("text_unread", task=task, version=version, count=num_unread)
    return None


def _states(policy: Policy, answers: Answers, text: int, matches: Matches) -> Iterator[RuleState]:
    for rule in policy.rules:
        found = [find(policy, it, answers, text) for it in rule.conditions]
        found += (matches[it] for it in rule.patterns)
        if rule.category is not None or any(it.holds is not False for it in found):
            yield combine(rule, found)


def _decide(policy: Policy, states: tuple[RuleState, ...], text: str) -> TextDecision:
    action = strongest(it.rule.action for it in states if it.applies)
    is_open = any(it.could_change(action) for it in states)
    if is_open and policy.on_failure is OnFailure.BLOCK:
        return TextDecision(action=VerdictAction.BLOCK, states=states, is_by_failure=True)
    found = TextDecision(action=action, states=states, is_by_failure=is_open)
    masks = action is VerdictAction.MASK
    return replace(found, masked=mask(text, found.masking)) if masks else found
