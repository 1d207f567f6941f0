"""Question cards: a typed question, and the task whose labels answer it.

A card answers only a question that equals its own in every character (`TypedQuestion.digest`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, Self, TypeAlias, cast

from pydantic import Field, JsonValue, StrictBool, StrictInt, StrictStr, model_validator

from nunatak_contract.enums import HeadKind, ProblemType, Reads, UnjudgedPart
from nunatak_contract.heads import HeadRecord, Label
from nunatak_contract.names import TaskName
from nunatak_contract.policies import Reference
from nunatak_contract.record import Record, later

MAX_OPTIONS, MAX_LEVELS = 255, 10
MAX_DEPTH: Final = 32
"""Most containers inside each other in a text that is JSON."""

Outcome: TypeAlias = StrictBool | StrictInt | StrictStr
"""What a question can be answered with: true or false, an option, or the place of a level."""
JsonText: TypeAlias = StrictStr | dict[str, JsonValue] | list[JsonValue]
"""A text, or JSON that is read as text."""


def text_of(value: JsonText) -> str:
    """Return a state, an instruction or a criterion as the text that a model reads.

    A text stays as it is. JSON becomes one line, with its fields in their order.

    Raises:
        ValueError: the JSON has more than `MAX_DEPTH` containers inside each other.
    """
    if isinstance(value, str):
        return value
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"JSON may have at most {MAX_DEPTH} levels of lists and objects")
    return json.dumps(value, ensure_ascii=False)


def _is_deeper(value: JsonValue, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(it, levels - 1) for it in inner)


class Option(Record, frozen=True):
    """An option of a choice. The text `true` and the value true are two options."""

    value: StrictBool | StrictStr
    description: JsonText | None = None


class Level(Record, frozen=True):
    """A level of a score."""

    label: JsonText
    description: JsonText | None = None


class TypedQuestion(Record, frozen=True):
    """A typed question. Files may also write it as System One does, with `criteria`."""

    type: Literal["predicate", "choice", "score"]
    instructions: JsonText | None = None
    options: tuple[Option, ...] = Field(default=(), description="of a choice, 2 to 255")
    levels: tuple[Level, ...] = Field(default=(), description="of a score, 2 to 10, lowest first")
    yes: JsonText | None = Field(default=None, description="what counts as yes")
    no: JsonText | None = Field(default=None, description="what counts as no")

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All answers, in the order of the question; of yes and no, no is first."""
        match self.type:
            case "predicate":
                return (False, True)
            case "choice":
                return tuple(it.value for it in self.options)
            case "score":
                return tuple(range(len(self.levels)))

    @property
    def names(self) -> Mapping[Outcome, str]:
        """The label of each outcome in a task without a card's `labels`."""
        match self.type:
            case "predicate":
                return {True: "yes", False: "no"}
            case "choice":
                values = (it.value for it in self.options)
                return {it: it if isinstance(it, str) else json.dumps(it) for it in values}
            case "score":
                return {at: text_of(it.label) for at, it in enumerate(self.levels)}

    @cached_property
    def digest(self) -> str:
        """The digest of the question. Only the order of options does not count.

        JSON keeps the order of its fields, because a model reads them in this order.
        """
        fields = self.model_dump(mode="json")
        options: list[dict[str, JsonValue]] = fields["options"]
        options.sort(key=lambda it: json.dumps(it["value"]))
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    @model_validator(mode="before")
    @classmethod
    def _read_system_one(cls, value: object) -> object:
        """Read `criteria`: an object of options, a list of levels, or what is true and false."""
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, object]", value))
        if fields.get("type") == "noul":
            fields["type"] = "predicate"
        criteria = fields.pop("criteria", None)
        if criteria is None:
            return fields
        twice = {"options", "levels", "yes", "no"} & fields.keys()
        if twice:
            raise ValueError(f"`criteria` says what `{min(twice)}` says: leave one of them out")
        return {**fields, **_read_criteria(fields.get("type"), criteria)}

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        bounds = {"choice": (2, MAX_OPTIONS, 0, 0), "score": (0, 0, 2, MAX_LEVELS)}
        least, most, lowest, highest = bounds.get(self.type, (0, 0, 0, 0))
        if not least <= len(self.options) <= most:
            raise ValueError(f"a {self.type} {_number_text(least, most)} options")
        if not lowest <= len(self.levels) <= highest:
            raise ValueError(f"a {self.type} {_number_text(lowest, highest)} levels")
        sides = (self.yes, self.no)
        if self.type != "predicate" and sides != (None, None):
            raise ValueError(f"a {self.type} has no `yes` and no `no`")
        if self.type == "predicate" and (self.instructions, *sides) == (None, None, None):
            raise ValueError("a yes/no question needs instructions or criteria")
        if len({(type(it), it) for it in self.outcomes}) != len(self.outcomes):
            raise ValueError("each option must be different")
        for it in self.texts:
            text_of(it)
        names = [it.value for it in self.options if isinstance(it.value, str)]
        if any(not it.strip() for it in (*names, *(text_of(it.label) for it in self.levels))):
            raise ValueError("an option or level must not be empty")
        return self

    @property
    def texts(self) -> tuple[JsonText, ...]:
        """All texts of the question apart from the names of options."""
        described = (*self.options, *self.levels)
        labels = (it.label for it in self.levels)
        found = (self.instructions, self.yes, self.no, *(it.description for it in described))
        return tuple(it for it in (*found, *labels) if it is not None)


def _number_text(least: int, most: int) -> str:
    return f"needs {least} to {most}" if most else "has no"


def _read_criteria(kind: object, criteria: object) -> Mapping[str, object]:
    """Return the fields of a question that System One's `criteria` stand for."""
    match kind, criteria:
        case "choice", dict():
            described = cast("dict[str, object]", criteria).items()
            return {"options": tuple({"value": it, "description": to} for it, to in described)}
        case "score", list():
            return {"levels": tuple({"label": it} for it in cast("list[object]", criteria))}
        case "predicate", dict() if criteria.keys() <= {"true", "false"}:
            sides = cast("dict[str, object]", criteria)
            return {"yes": sides.get("true"), "no": sides.get("false")}
        case "predicate", _:
            raise ValueError("criteria must be an object with `true`, `false` or both")
        case _:
            raise ValueError("criteria must be an object for a choice, and a list for a score")


class QuestionCard(Record, frozen=True):
    """Binds a question to a task of sequence classification.

    Single labels: every label of the task means one outcome, and an outcome may have several.
    Several labels: a yes/no question reads one label, a choice one label for each option.
    Regression: its value is a place on the levels of a score.
    """

    name: TaskName
    task: Reference = Field(description="name, name@alias or name/version")
    question: TypedQuestion
    labels: dict[Label, Outcome] = Field(
        default_factory=dict,
        description="what each label of the task means: true or false, an option, or the place of "
        "a level from 0; empty: labels have the names of options or levels, or are yes and no",
    )
    bounds: tuple[float, float] | None = Field(
        default=None,
        description="of a regression: the values that mean the lowest and the highest level; "
        "absent: 0 and the number of levels less one",
    )
    ask_upstream_below: float | None = later(
        None, "an answer with a lower confidence is asked of the server's upstream", gt=0, le=1
    )
    unjudged: frozenset[Literal[UnjudgedPart.UNREAD]] = later(
        frozenset(),
        "`unread`: the task answers although it has no token for characters of a text; "
        "else such a text has no answer",
    )

    @property
    def references(self) -> tuple[str, ...]:
        """The reference of the task, as a policy has several."""
        return (self.task,)

    @cached_property
    def meanings(self) -> Mapping[str, Outcome]:
        """What each label of the task means."""
        named = {label: meant for meant, label in self.question.names.items()}
        return self.labels or named

    @property
    def names(self) -> Mapping[Outcome, str]:
        """The label of each outcome of a task that is trained for this card.

        These are the labels of the card if each outcome has one, so that the next version of the
        task fits the card too. Otherwise they are the names of the outcomes.
        """
        named = {meant: label for label, meant in self.labels.items()}
        is_whole = len(self.labels) == len(named) == len(self.question.outcomes)
        return named if is_whole else self.question.names

    @model_validator(mode="after")
    def _labels_mean_outcomes(self) -> Self:
        outcomes = {(type(it), it) for it in self.question.outcomes}
        for label, meant in self.labels.items():
            if (type(meant), meant) not in outcomes:
                raise ValueError(f"the label {label!r} must mean an answer of the question")
        if self.bounds is not None and self.bounds[0] == self.bounds[1]:
            raise ValueError("the bounds must be two different values")
        return self


def card_of(fields: object) -> QuestionCard:
    """Read a card, or a question alone, whose labels then have the names of its answers.

    Raises:
        ValidationError: the fields are neither.
    """
    is_card = isinstance(fields, dict) and "question" in fields
    alone: dict[str, object] = {"name": "question", "task": "question", "question": fields}
    return QuestionCard.model_validate(fields if is_card else alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringHead:
    """What decides whether a head can answer a card."""

    kind: HeadKind
    problem_type: ProblemType | None
    labels: tuple[str, ...]


def find_card_misfit(
    card: QuestionCard, head: HeadRecord | AnsweringHead, *, reads: Reads | None = None
) -> str | None:
    """Return why the answers of a head cannot answer the question of a card; None if they can.

    `reads`: what the task reads, as in its manifest.
    """
    if reads is Reads.PAIR:
        return "a question is about one text, and the task reads pairs of texts"
    if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return f"a question needs a task of sequence classification, got a {head.kind} task"
    if head.problem_type is ProblemType.REGRESSION:
        is_score = card.question.type == "score" and not card.labels
        return None if is_score else "a regression answers a score alone, without `labels`"
    meanings, labels = card.meanings, frozenset(head.labels)
    missing = next((it for it in meanings if it not in labels), None)
    if missing is not None:
        return f"there is no label {missing!r}; its labels: {', '.join(head.labels[:20])}"
    if head.problem_type is ProblemType.MULTI_LABEL:
        return _find_misfit_of_several(card)
    unmeant = (it for it in head.labels if it not in meanings)
    problems = (f"the label {it!r} means no answer of the question" for it in unmeant)
    return next(problems, _find_unanswered(card))


def _find_misfit_of_several(card: QuestionCard) -> str | None:
    meant = list(card.meanings.values())
    match card.question.type:
        case "predicate":
            return None if meant == [True] else "of several labels, exactly one must mean true"
        case "score":
            return "several labels at once answer no score"
        case "choice" if len(meant) != len(card.question.outcomes):
            return "of several labels, each option needs exactly one"
        case "choice":
            return _find_unanswered(card)


def _find_unanswered(card: QuestionCard) -> str | None:
    meant = {(type(it), it) for it in card.meanings.values()}
    unanswered = (it for it in card.question.outcomes if (type(it), it) not in meant)
    return next((f"no label means {it!r}" for it in unanswered), None)
