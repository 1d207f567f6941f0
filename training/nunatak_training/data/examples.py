"""Examples and the sets they form, with a digest over their content; the labels of each kind."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from nunatak_model import TextInput
from nunatak_training.kinds import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """All labels that apply to a text, sorted; maybe none."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One tagged word by its characters in the text."""

    begin: int
    end: int
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    """All words of a text, in order."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpan:
    """One right answer by its characters in the context."""

    text: str
    begin: int

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.begin + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All right answers to a question; none where the context does not answer it."""

    spans: tuple[AnswerSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevance:
    """How well a document answers its query, compared with the other documents of the group."""

    grade: float
    group: str


Label = str | float | LabelSet | TaggedWords | Answers | Relevance
"""One name; one value; several names; tags; answers; relevance."""


def label_json(label: Label) -> JsonValue:
    """Return a label as JSON, the same for the same label."""
    match label:
        case str() | float() | int():
            return label
        case LabelSet():
            return list(label.names)
        case TaggedWords():
            return [[word.begin, word.end, word.tag] for word in label.words]
        case Answers():
            return [[span.begin, span.text] for span in label.spans]
        case Relevance():
            return [label.grade, label.group]


LabelT = TypeVar("LabelT", bound=Label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One labelled text, or pair of texts.

    Tagged words are one text, joined by spaces; a question and its context are a pair, and so are
    a query and a document.
    """

    text: str
    text_pair: str | None = None
    label: Label

    @property
    def model_input(self) -> TextInput:
        """The example as the tokenizer takes it."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadExample:
    """An example and the place it was read from, for messages: `train.jsonl:17`."""

    where: str
    example: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples in a fixed order."""

    examples: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def digest(self) -> str:
        """SHA-256 over the rows in order, whatever file format they came in."""
        state = hashlib.sha256()
        for example in self.examples:
            row = [example.text, example.text_pair, label_json(example.label)]
            state.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
            state.update(b"\n")
        return state.hexdigest()

    def labels(self, kind: type[LabelT]) -> list[LabelT]:
        """Return the labels, which must all be of one type.

        Raises:
            TypeError: they are not, so the examples are of another kind of task.
        """
        labels = [example.label for example in self.examples]
        for label in labels:
            if not isinstance(label, kind):
                raise TypeError(f"expected labels of type {kind.__name__}, got {label!r}")
        return [label for label in labels if isinstance(label, kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """All a task is trained and chosen on."""

    name: str
    kind: TaskKind = TaskKind.SINGLE_LABEL
    train: ExampleSet
    dev: ExampleSet
    labels: tuple[str, ...]
    """Names of the logits, in order: of classes, labels, tags or a value; else none."""


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Order distinct labels: by value where all are integers, else by code point."""
    distinct = set(labels)
    if all(_is_integer(label) for label in distinct):
        # "01" and "1" are two labels with one value: the text settles their order.
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def _is_integer(label: str) -> bool:
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 18
