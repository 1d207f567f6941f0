"""Rules: three-valued logic equals a brute force over all possible answers; masks."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.policies import decide, make_policy, make_rule, scored, span, spanned, when
from nunatak_contract.enums import Combine, OnFailure, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_server.outputs.conditions import FoundSpan
from nunatak_server.predict.types import TaskFailure, TaskPrediction
from nunatak_server.verdicts.rules import blocks_for_certain, failures_in, mask

FLAG, MASK, BLOCK = VerdictAction.FLAG, VerdictAction.MASK, VerdictAction.BLOCK
TOKEN_TASKS = ("names", "places", "phones")
TEXT_TASKS = ("attack", "topic", "tone")
TASKS = (*TOKEN_TASKS, *TEXT_TASKS)
SPANS = {task: span(6 * place, 6 * place + 4) for place, task in enumerate(TASKS)}
TEXT = "".join(chr(0x1F300 + place) for place in range(40))
Values = Mapping[str, bool | None]
Outcome = tuple[VerdictAction, frozenset[FoundSpan]]


def condition(task: str) -> Condition:
    return when(task, "NAME" if task in TOKEN_TASKS else "yes", threshold=0.5)


@st.composite
def rules(draw: st.DrawFn, name: str) -> Rule:
    action = draw(st.sampled_from((FLAG, MASK, BLOCK)))
    combine = draw(st.sampled_from(Combine))
    is_any_mask = action is MASK and combine is Combine.ANY
    tasks = TOKEN_TASKS if is_any_mask else TASKS
    named = draw(st.lists(st.sampled_from(tasks), min_size=1, max_size=4, unique=True))
    if action is MASK and not set(named) & set(TOKEN_TASKS):
        named.append("names")
    return make_rule(*map(condition, named), name=name, action=action, combine=combine)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    found = [draw(rules(f"rule-{number}")) for number in range(draw(st.integers(1, 4)))]
    return make_policy(*found, on_failure=draw(st.sampled_from(OnFailure)))


VALUES = st.fixed_dictionaries({task: st.sampled_from((True, False, None)) for task in TASKS})


def answers_of(policy: Policy, values: Values) -> dict[str, TaskPrediction | TaskFailure]:
    """Answers that make each condition hold or not; None is a failure."""
    answers = dict[str, TaskPrediction | TaskFailure]()
    for task in policy.references:
        value = values[task]
        if value is None:
            error = NunatakError("out_of_memory")
            answers[task] = TaskFailure(reference=task, error=error)
        elif task in TOKEN_TASKS:
            answers[task] = spanned(task, [SPANS[task]] if value else [])
        else:
            answers[task] = scored(task, {"yes": 0.9, "no": 0.1} if value else {"no": 1, "yes": 0})
    return answers


def outcome_of(policy: Policy, values: Mapping[str, bool], failed: frozenset[str]) -> Outcome:
    """The decision if every condition is known: plain logic of two values.

    Nothing is known about a failed task, so the task could have found a span.
    """
    action, spans = VerdictAction.ALLOW, set[FoundSpan]()
    for rule in policy.rules:
        held = [values[it.task] for it in rule.conditions]
        if any(held) if rule.combine is Combine.ANY else all(held):
            action = max(action, rule.action, key=list(VerdictAction).index)
            if rule.action is MASK:
                found = {it.task for it in rule.conditions if values[it.task]}
                spans |= {SPANS[it] for it in found if it in TOKEN_TASKS or it in failed}
    return action, frozenset(spans if action is MASK else ())


def completions(policy: Policy, values: Values) -> Iterator[dict[str, bool]]:
    """Every answer that the failed tasks could have given."""
    options = [(True, False) if values[it] is None else (values[it],) for it in policy.references]
    for chosen in product(*options):
        yield {it: bool(value) for it, value in zip(policy.references, chosen, strict=True)}


def masked_by_characters(spans: frozenset[FoundSpan]) -> str:
    """The text with each span (none touches another here) replaced, character by character."""
    shown = list(TEXT)
    for it in spans:
        shown[it.start : it.end] = [f"[{it.label}]", *[""] * (it.end - it.start - 1)]
    return "".join(shown)


@settings(max_examples=160, deadline=None, derandomize=True, database=None)
@given(policy=policies(), values=VALUES)
def test_a_decision_equals_a_brute_force_over_the_answers_of_failed_tasks(
    policy: Policy, values: Values
) -> None:
    (found,) = decide(policy, answers_of(policy, values), [TEXT])

    failed = frozenset(it for it in policy.references if values[it] is None)
    possible = {outcome_of(policy, it, failed) for it in completions(policy, values)}
    if len(possible) == 1:
        action, spans = possible.pop()
        assert (found.action, found.is_by_failure) == (action, False)
    elif policy.on_failure is OnFailure.BLOCK:
        action, spans = BLOCK, frozenset[FoundSpan]()
        assert (found.action, found.is_by_failure) == (BLOCK, True)
    else:
        known = {it: bool(values[it]) for it in policy.references}
        action, spans = outcome_of(policy, known, failed)
        assert (found.action, found.is_by_failure) == (action, True)
    assert found.masked == (masked_by_characters(spans) if action is MASK else None)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(policy=policies(), values=VALUES)
def test_a_certain_block_is_what_every_order_of_answers_ends_with(
    policy: Policy, values: Values
) -> None:
    answers = answers_of(policy, values)
    final = decide(policy, answers, [TEXT])[0].action
    arrived = dict[str, TaskPrediction | TaskFailure]()
    is_certain = False

    for task in policy.references:
        arrived[task] = answers[task]
        is_certain |= blocks_for_certain(policy, arrived, [{}], latest=task)
        if is_certain:
            assert decide(policy, arrived, [TEXT])[0].action is final is BLOCK


def test_a_copy_of_a_policy_with_other_rules_knows_its_own_tasks() -> None:
    policy = make_policy(make_rule(when("attack", "yes")))
    assert policy.references == ("attack",)

    copied = policy.model_copy(update={"rules": (make_rule(when("tone/3", "yes")),)})

    assert (copied.references, copied.tasks) == (("tone/3",), {"tone"})


@given(
    st.lists(
        st.tuples(st.integers(0, 38), st.integers(1, 10)).map(
            lambda it: span(it[0], min(it[0] + it[1], 40))
        ),
        max_size=6,
    )
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_a_mask_hides_exactly_the_characters_of_the_spans(spans: Sequence[FoundSpan]) -> None:
    masked = mask(TEXT, spans)

    hidden = {place for it in spans for place in range(it.start, it.end)}
    kept = [character for place, character in enumerate(TEXT) if place not in hidden]
    assert [it for it in masked if it in TEXT] == kept
    # Spans that overlap have one label together; spans that only touch have one each.
    joined = {(it.start, it.end) for it in spans}
    starts = {start for start, _ in joined if not any(one < start < two for one, two in joined)}
    assert masked.count("[NAME]") == len(starts)


def test_the_label_of_overlapping_spans_is_the_first_and_longest() -> None:
    spans = (span(4, 9, "PLACE"), span(0, 3, "X"), span(0, 6, "NAME"))

    assert mask("Ann Bell, Oslo", spans) == "[NAME] Oslo"


YES, NOTHING = when("attack", "yes", threshold=0.5), VerdictAction.ALLOW
NAMED = spanned("names", [span(0, 3)])
SURE = {"yes": 0.9, "no": 0.1}


@pytest.mark.parametrize(
    ("conditions", "answers", "opened", "failed"),
    [
        ([YES], [scored("attack", SURE)], (NOTHING, None), ["attack"]),
        # A version that answers about whole texts was promoted.
        (
            [when("names", "NAME"), YES],
            [NAMED, scored("attack", SURE)],
            (MASK, "[NAME] paid"),
            ["attack"],
        ),
        ([when("names", "NAME", "PLACE")], [NAMED], (MASK, "[NAME] paid"), ["names"]),
    ],
    ids=["nothing-to-mask", "one-finding-without-a-place", "one-label-missing"],
)
def test_a_mask_that_may_lack_a_part_is_a_failure(
    conditions: Sequence[Condition],
    answers: Sequence[TaskPrediction],
    opened: tuple[VerdictAction, str | None],
    failed: Sequence[str],
) -> None:
    rule, known = make_rule(*conditions, action=MASK), {it.reference: it for it in answers}
    policy = make_policy(rule)

    (closed,) = decide(policy, known, ["Ann paid"])
    (open_,) = decide(make_policy(rule, on_failure=OnFailure.ALLOW), known, ["Ann paid"])

    assert (closed.action, closed.masked, closed.is_by_failure) == (BLOCK, None, True)
    assert ((open_.action, open_.masked), open_.is_by_failure) == (opened, True)
    failures = [(it.reference, it.error.code) for it in failures_in(policy, known)]
    assert failures == [(it, "rule_unanswerable") for it in failed]


@pytest.mark.parametrize(
    ("labels", "threshold", "scores", "action", "is_by_failure"),
    [
        (["yes"], None, {"yes": 0.4, "no": 0.35, "so": 0.25}, BLOCK, False),
        (["yes"], None, {"yes": 0.4, "no": 0.6}, NOTHING, False),
        (["yes"], 0.8, {"yes": 0.9, "no": 0.1}, BLOCK, False),
        (["yes"], 0.8, {"yes": 0.8, "no": 0.2}, BLOCK, False),
        (["yes"], 0.8, {"yes": 0.7999, "no": 0.2001}, NOTHING, False),
        (["yes", "gone"], 0.5, {"other": 1.0, "no": 0.0}, BLOCK, True),
        (["yes", "gone"], 0.5, {"yes": 0.1, "no": 0.9}, BLOCK, True),
        (["yes", "gone"], 0.5, SURE, BLOCK, False),
    ],
)
def test_a_label_counts_from_its_threshold_on_and_a_missing_label_is_never_a_no(
    labels: Sequence[str],
    threshold: float | None,
    scores: dict[str, float],
    action: VerdictAction,
    is_by_failure: bool,  # noqa: FBT001 - a case
) -> None:
    policy = make_policy(make_rule(when("attack", *labels, threshold=threshold)))

    (found,) = decide(policy, {"attack": scored("attack", scores)}, ["a"])

    assert (found.action, found.is_by_failure) == (action, is_by_failure)
