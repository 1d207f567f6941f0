"""Examples and sets of examples, with a digest over the content; the labels of each kind."""

import hashlib
import json
import random
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import JsonValue

from nunatak_contract.errors import NunatakError
from nunatak_model import TextInput
from nunatak_rows import FileRow
from nunatak_training.kinds import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """All labels that apply to a text, sorted; may be empty."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One tagged word by its positions in characters."""

    begin: int
    end: int
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpan:
    """One right answer by its positions in the context, in characters."""

    text: str
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All right answers to a question; empty if the context has no answer."""

    spans: tuple[AnswerSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevance:
    """The grade of a document for its query, compared with the other documents of the group."""

    grade: float
    group: str


Label = str | float | LabelSet | TaggedWords | Answers | Relevance


def label_json(label: Label) -> JsonValue:
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
    """One labelled text, or a pair, such as a question with its context."""

    text: str
    text_pair: str | None = None
    label: Label
    shares: tuple[tuple[str, float], ...] = ()
    """What a teacher says: the probability of each label of the task, or the value of a regression.
    Empty if nobody teaches."""
    has_label: bool = True
    """Whether the label is the text's own, and does not follow from the shares."""

    @property
    def model_input(self) -> TextInput:
        return self.text if self.text_pair is None else (self.text, self.text_pair)

    @property
    def same_text(self) -> tuple[str, ...]:
        """Equal for inputs that differ only in case, white space or Unicode form (NFKC)."""
        parts = (self.text,) if self.text_pair is None else (self.text, self.text_pair)
        return tuple(" ".join(unicodedata.normalize("NFKC", it).casefold().split()) for it in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadExample:
    row: FileRow
    example: Example

    @property
    def where(self) -> str:
        return self.row.where


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSet:
    """Examples in a fixed order."""

    examples: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def digest(self) -> str:
        """SHA-256 over the rows in order, equal for every file format."""
        state = hashlib.sha256()
        for example in self.examples:
            row = [example.text, example.text_pair, label_json(example.label)]
            if example.shares:
                row += [example.has_label, [list(share) for share in example.shares]]
            state.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
            state.update(b"\n")
        return state.hexdigest()

    @property
    def is_taught(self) -> bool:
        return any(example.shares for example in self.examples)

    def labels(self, kind: type[LabelT]) -> list[LabelT]:
        labels = [example.label for example in self.examples]
        for label in labels:
            if not isinstance(label, kind):
                raise TypeError(f"expected labels of type {kind.__name__}, got {label!r}")
        return [label for label in labels if isinstance(label, kind)]


def with_joined(
    examples: ExampleSet, share: float, *, default: str, sizes: Sequence[int], most: int, seed: int
) -> ExampleSet:
    """Return the examples, and then copies of a share of them.

    The text of a copy stands before or after the text of an example with the default label.
    `sizes` counts the tokens of each text. Both texts together have at most `most` tokens, so an
    example without such room has no copy.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    own = examples.examples
    labelled = [it for it in enumerate(sizes) if own[it[0]].label == default]
    others = sorted(labelled, key=lambda it: it[1])
    joined = list[Example]()
    for place in sorted(draw.sample(range(len(own)), round(share * len(own)))):
        fitting = bisect_right(others, most - sizes[place], key=lambda it: it[1])
        if fitting:
            texts = [own[place].text, own[others[draw.randrange(fitting)][0]].text]
            draw.shuffle(texts)
            joined.append(replace(own[place], text=" ".join(texts)))
    return ExampleSet(examples=(*own, *joined))


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A task version or a server that is asked about texts."""

    name: str
    digest: str
    kind: TaskKind
    labels: tuple[str, ...]
    ask: Callable[[Sequence[TextInput]], Iterable[Mapping[str, float] | NunatakError]]
    """Gives the probabilities of each input in order, or why there are none. A value is the only
    label, with the probability 1."""
    thresholds: Mapping[str, float] = field(default_factory=dict[str, float])
    """The scores from which labels of several apply; other labels: 0.5."""
    seconds: float = 0.0
    """The time of asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    name: str
    kind: TaskKind = TaskKind.SINGLE_LABEL
    train: ExampleSet
    dev: ExampleSet
    test: ExampleSet | None = None
    """Only scored, once, when training is over."""
    labels: tuple[str, ...]
    """Names of the logits, in order, if they have names."""
    teacher: Teacher | None = None
    """None if nobody was asked: taught examples then have the probabilities of their files."""


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """By value if all are integers, else by code point."""
    distinct = set(labels)
    if all(_is_integer(label) for label in distinct):
        # "01" and "1" are two labels with one value, so the text decides their order.
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def _is_integer(label: str) -> bool:
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 18
