"""Policies: rules that turn the answers of several tasks about a text into one decision.

A condition holds if a task finds one of the condition's labels in the text, and a pattern holds if
it matches a part of the text. A rule combines conditions and patterns, and names an action. The
strongest action of the rules that apply is the decision.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import product
from typing import Annotated, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from nunatak_contract import enums
from nunatak_contract.errors import InvalidNameError, needs_extra
from nunatak_contract.heads import HeadRecord, Label
from nunatak_contract.names import TaskName, TaskReference
from nunatak_contract.plain_text import visible
from nunatak_contract.record import Record, later

MAX_RULES: Final = 64
MAX_CONDITIONS: Final = 32
MAX_LABELS_OF_A_CONDITION: Final = 256
MAX_COMPILED: Final = 2 * MAX_RULES * MAX_CONDITIONS
"""More than one policy has, because each text is read by all patterns of a policy in turn."""
MAX_PROGRAM_BYTES: Final = 1024 * 1024
"""Of a compiled pattern, about. RE2's own limit of 8 MiB lets a pattern compile for half a minute,
in which no other thread runs."""
OUTSIDE: Final = "O"
"""The label of tokens that belong to no entity. No condition can name this label."""


def _check_line(text: str) -> str:
    if visible(text) != text:
        raise ValueError(f"a message must be one line of plain text, got '{visible(text)}'")
    return text


def _check_reference(text: str) -> str:
    try:
        TaskReference.parse(text)
    except InvalidNameError as error:
        raise ValueError(str(error)) from error
    return text


Message = Annotated[str, Field(max_length=500), AfterValidator(_check_line)]
Reference = Annotated[str, AfterValidator(_check_reference)]


class Condition(Record, frozen=True):
    """Holds for a text in which the task finds one of the labels, in any window."""

    task: Reference = Field(description="name, name@alias or name/version")
    labels: tuple[Label, ...] = Field(
        min_length=1,
        max_length=MAX_LABELS_OF_A_CONDITION,
        description="labels as answers show them; for token classification without B- and I-",
    )
    threshold: Annotated[float, Field(strict=True)] | None = Field(
        default=None,
        description="smallest score of a label in any part of the text, above 0 and at most 1; "
        "absent: the task's own decision, so the labels that the task predicts. A regression needs "
        "a threshold, which may be any number",
    )


class Pattern(Record, frozen=True):
    """Holds for a text of which a regular expression matches a part. No task is asked."""

    pattern: str = Field(
        min_length=1,
        max_length=1000,
        description="in the syntax of RE2, such as `(?i)\\bproject\\s+falcon\\b`; case counts "
        "without `(?i)`",
    )
    label: Label = Field(description="what a mask shows in the place of each match")

    def __hash__(self) -> int:
        # A text keeps its hash, and each pattern of a policy is looked up for each text.
        return hash(self.pattern)


class Rule(Record, frozen=True):
    """Conditions and patterns, and the action if they hold together."""

    name: TaskName
    conditions: tuple[Condition, ...] = Field(default=(), max_length=MAX_CONDITIONS)
    patterns: tuple[Pattern, ...] = later((), max_length=MAX_CONDITIONS)
    combine: enums.Combine = enums.Combine.ANY
    action: enums.VerdictAction = Field(description="flag, mask or block")
    message: Message | None = None
    category: enums.ModerationCategory | None = Field(
        default=None, description="the category of /v1/moderations that the rule stands for"
    )

    @field_validator("action")
    @classmethod
    def _action_does_something(cls, action: enums.VerdictAction) -> enums.VerdictAction:
        if action is enums.VerdictAction.ALLOW:
            raise ValueError("a rule must flag, mask or block; all other texts are allowed")
        return action

    @model_validator(mode="after")
    def _rule_can_hold(self) -> Self:
        if not self.conditions and not self.patterns:
            raise ValueError("a rule needs a condition or a pattern")
        return self


class Policy(Record, frozen=True):
    """A named list of rules, and what happens if a task does not answer."""

    name: TaskName
    mode: enums.PolicyMode = enums.PolicyMode.ENFORCE
    on_failure: enums.OnFailure = Field(
        default=enums.OnFailure.BLOCK,
        description="the decision while a task that could change the decision has no answer; "
        "allow: as if the task found nothing",
    )
    deadline_ms: Annotated[int, Field(ge=1, le=600_000, strict=True)] | None = Field(
        default=None, description="absent: the server's default; a request may send its own"
    )
    max_delay_ms: Annotated[int, Field(ge=1, le=600_000, strict=True)] | None = Field(
        default=None,
        description="longest time for which a stream holds text back; then `on_failure` decides. "
        "Absent: until the text is judged",
    )
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=MAX_RULES)]
    unjudged: frozenset[enums.UnjudgedPart] = Field(
        default=frozenset(),
        description="parts of a gateway's request that may pass without a judgement; all others "
        "are refused, because no task reads them. `unread`: characters for which a task has no "
        "token; else the task counts as failed about such a text. `turns`: a sentence that is "
        "cut over texts of one role with other roles between",
    )

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of all rules, each once, in their order."""
        return tuple(dict.fromkeys(it for rule in self.rules for it in rule.conditions))

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of all rules, each once, in their order."""
        return tuple(dict.fromkeys(it for rule in self.rules for it in rule.patterns))

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The task references of all conditions, each once, in the order of the rules."""
        return tuple(dict.fromkeys(condition.task for condition in self.conditions))

    @cached_property
    def tasks(self) -> frozenset[str]:
        """The names of the tasks of all conditions."""
        return frozenset(map(TaskReference.task_in, self.references))

    @field_validator("rules")
    @classmethod
    def _rules_have_own_names(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        names = [rule.name for rule in rules]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"each rule must have its own name, got {twice!r} twice")
        return rules


class Regex(NamedTuple):
    """A pattern that RE2 has compiled."""

    find: Callable[[str, int], Iterator[tuple[int, int]]]
    """From a text and a place to the matches from there on: begin and end, in characters."""
    size: int
    """Steps for one character, at worst."""


@lru_cache(MAX_COMPILED)
def compiled(pattern: str) -> Regex:
    """Compile a pattern. RE2 finds each match in a time linear in the text and in the pattern.

    Raises:
        MissingExtraError: RE2 is not installed.
        ValueError: RE2 refuses the pattern, also for its size; or the pattern may match no
            character, and then the characters there are read no more; or it reads bytes.
    """
    with needs_extra("server"):
        import re2  # noqa: PLC0415 - the client compiles no pattern
    options = re2.Options()
    options.log_errors, options.never_capture = False, True
    options.max_mem = MAX_PROGRAM_BYTES
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        (problem,) = error.args
        raise ValueError(f"RE2 cannot read the pattern {pattern!r}: {problem.decode()}") from error
    # A match of no character depends on two things: the kinds of the characters on both sides.
    sides = product(("", "\n", " ", "a"), repeat=2)
    if any(regex.fullmatch(a + b, len(a), len(a)) for a, b in sides):
        raise ValueError(
            f"the pattern {pattern!r} matches the empty text; expected at least one character in "
            "each match"
        )
    if r"\C" in pattern.replace(r"\\", ""):
        raise ValueError(rf"the pattern {pattern!r} reads single bytes; use (?s:.) in place of \C")

    def find(text: str, begin: int) -> Iterator[tuple[int, int]]:
        return (it.span() for it in regex.finditer(text, begin))

    return Regex(find, regex.programsize)


def labels_in_answers(kind: enums.HeadKind, labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a head as its answers show them, in order.

    Spans of token classification are shown without `B-` and `I-`, and there are no spans of `O`.
    """
    if kind is not enums.HeadKind.TOKEN_CLASSIFICATION:
        return tuple(labels)
    return tuple(dict.fromkeys(it for it in map(group_of, labels) if it != OUTSIDE))


def group_of(label: str) -> str:
    """Return the label of a token without `B-` and `I-`, as answers show groups of tokens."""
    return label.split("-", 1)[-1]


def find_misfit(condition: Condition, head: HeadRecord, reads: enums.Reads | None) -> str | None:
    """Return why a task with this head, for these texts, cannot decide a condition, or None."""
    if reads is enums.Reads.PAIR:
        return "a policy judges single texts, and the task reads pairs of texts"
    if head.kind in {enums.HeadKind.QUESTION_ANSWERING, enums.HeadKind.RANKING}:
        return f"a condition needs a task with labels, got a {head.kind} task"
    threshold = condition.threshold
    if head.problem_type is enums.ProblemType.REGRESSION:
        if threshold is None:
            return "a condition about a regression needs a threshold"
    elif threshold is not None and not 0 < threshold <= 1:
        return (
            f"a threshold must be above 0 and at most 1, because scores are probabilities, got "
            f"{threshold:g}; 95 percent is 0.95"
        )
    known = labels_in_answers(head.kind, head.labels)
    missing = next((label for label in condition.labels if label not in known), None)
    if missing is None:
        return None
    return f"there is no label {missing!r}; its labels: {', '.join(known[:20])}"
