"""The checks of a whole task, the names of its logits, and the drawing of a dev part."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Final, Self, cast

import numpy as np

from nunatak_contract.cards import LONG_SHARE_TO_WARN_OF
from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import counted
from nunatak_model import TextInput
from nunatak_rows.inputs import bad_row
from nunatak_training.data.bad_rows import look_alikes, spelt_out
from nunatak_training.data.examples import (
    Answers,
    ExampleSet,
    Label,
    LabelSet,
    ReadExample,
    Relevance,
    TaggedWords,
    TaskData,
    label_json,
    sorted_labels,
)
from nunatak_training.data.rows import TEXT_KINDS, VALUE_NAME
from nunatak_training.errors import too_few
from nunatak_training.kinds import TaskKind

DEV_SHARE = 0.1
MAX_IMBALANCE = 20
"""Ratio of the examples of two labels above which a model may never predict the rare label."""
SHOWN_CHARACTERS = 60
SHOWN_PAIRS = 10
VECTORS = frozenset(LabelSet(names=it) for it in (("0", "1"), ("false", "true")))
"""The labels of every text whose labels are a vector of two numbers."""
NAMED_KINDS = frozenset(
    {TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL, TaskKind.TOKEN_CLASSIFICATION}
)
"""Kinds whose labels are names: two different labels of one text cannot both be right."""
WHOLE: Final = re.compile(r"\A(-?[0-9]+)\.0\Z")
VALUE: Final = re.compile(r"[+-]?\d*\.\d+")
"""A number with decimals, which is no name of a label but a value, written as a text in CSV."""

Parts = tuple[list[ReadExample], list[ReadExample]]


def _share_of_labels(examples: list[ReadExample], *, seed: int) -> set[int]:
    """`DEV_SHARE` of the texts of every label.

    Equal texts (`same_text`) are on one side, so that dev holds no text that training sees. A text
    of several labels stays in train, and so does a label of one distinct text. The same examples
    and seed give the same places, here and below.
    """
    texts: defaultdict[str, list[list[int]]] = defaultdict(list)
    for positions in _positions_by_text(examples):
        labels = {_first_name(examples[position]) for position in positions}
        if len(labels) == 1:
            texts[labels.pop()].append(positions)
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev: set[int] = set()
    for label in sorted(texts):
        members = texts[label]
        if len(members) > 1:
            drawn = generator.sample(members, max(1, round(DEV_SHARE * len(members))))
            in_dev.update(chain.from_iterable(drawn))
    return in_dev


def _positions_by_text(examples: list[ReadExample]) -> list[list[int]]:
    found: defaultdict[object, list[int]] = defaultdict(list)
    for position, read in enumerate(examples):
        found[read.example.same_text].append(position)
    return list(found.values())


def _texts_to_spare(examples: list[ReadExample], *, seed: int) -> set[int]:
    """Up to `DEV_SHARE` of the texts, all of whose names are names of train too."""
    texts = _positions_by_text(examples)
    names = [
        frozenset(name for position in positions for name in _names(examples[position]))
        for positions in texts
    ]
    size = max(1, round(DEV_SHARE * len(texts)))
    kept = set[int]()
    while len(kept) < len(texts):
        candidates = [number for number in range(len(texts)) if number not in kept]
        generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
        drawn = set(generator.sample(candidates, min(size, len(candidates))))
        left = frozenset[str]().union(
            *(found for number, found in enumerate(names) if number not in drawn)
        )
        needed = {number for number in drawn if not names[number] <= left}
        if not needed and len(drawn) < len(texts):
            return {position for number in drawn for position in texts[number]}
        kept |= needed or drawn
    return set()


def _whole_groups(examples: list[ReadExample], *, seed: int) -> set[int]:
    """`DEV_SHARE` of the queries that have a relevant document, with all their documents."""
    graded = list(map(_graded, examples))
    groups = sorted({group for group, grade in graded if grade > 0})
    if len(groups) < 2:
        return set()
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    drawn = set(generator.sample(groups, max(1, round(DEV_SHARE * len(groups)))))
    return {position for position, (group, _) in enumerate(graded) if group in drawn}


def names_in(label: Label) -> tuple[str, ...]:
    match label:
        case str():
            return (label,)
        case LabelSet():
            return label.names
        case TaggedWords():
            return tuple(word.tag for word in label.words)
        case _:
            return ()


def check_train(train: list[ReadExample], kind: TaskKind, name: str) -> None:
    if not train:
        raise too_few(name, "there are no train examples")
    if (problem := sameness((it.example.label for it in train), kind)) is not None:
        raise too_few(name, problem)


def sameness(train: Iterable[Label], kind: TaskKind) -> str | None:
    """The problem of train labels that are all equal; None if they differ."""
    labels = set(train)
    names = {name for label in labels for name in names_in(label)}
    match kind:
        case TaskKind.MULTI_LABEL if not names:
            return "no train example has a label"
        case TaskKind.MULTI_LABEL if labels <= VECTORS:
            return (
                f"every train example has the labels {' and '.join(sorted(names))}, like a "
                "vector; list the names of the labels that apply instead"
            )
        case TaskKind.SINGLE_LABEL | TaskKind.TOKEN_CLASSIFICATION if len(names) < 2:
            what = "labels" if kind is TaskKind.SINGLE_LABEL else "tags"
            return f"expected train examples of at least 2 {what}, got {sorted(names)}"
        case TaskKind.REGRESSION | TaskKind.RANKING if len(set(map(_number, labels))) < 2:
            told = "all train examples have the same value"
            if kind is TaskKind.REGRESSION and len(labels) > 1:
                told += ", as float32 has it: move or multiply the values"
            return told
        case TaskKind.QUESTION_ANSWERING if labels == {Answers(spans=())}:
            return "no train example has an answer"
        case _:
            return None


def _number(label: Label) -> float:
    """Return a value as float32 has it, in which a task learns it, or a grade as it is."""
    return label.grade if isinstance(label, Relevance) else float(np.float32(cast("float", label)))


def label_names(train: list[ReadExample], kind: TaskKind) -> tuple[str, ...]:
    if kind is TaskKind.REGRESSION:
        return (VALUE_NAME,)
    return sorted_labels(label for read in train for label in names_in(read.example.label))


def check_scored(examples: list[ReadExample], name: str, *, split: str) -> None:
    if not examples:
        raise too_few(name, f"there are no {split} examples")
    labels = (read.example.label for read in examples)
    grades = [label.grade for label in labels if isinstance(label, Relevance)]
    if grades and max(grades) <= 0:
        raise too_few(name, f"no {split} document has a grade above 0, so no ranking can be right")


def in_words_of(labels: Collection[str], read: Iterable[ReadExample]) -> Iterator[ReadExample]:
    """CSV of pandas has `True` or `1.0`, and CSV of Excel `TRUE`, where JSON has `true` or `1`."""
    words = {_folded(it): it for it in labels}
    for it in read:
        label = it.example.label
        known = words.get(_folded(label)) if isinstance(label, str) else None
        if known is None or label in labels:
            yield it
        else:
            yield replace(it, example=replace(it.example, label=known))


def _folded(label: str) -> str:
    folded = label.casefold()
    return folded if folded in {"true", "false"} else WHOLE.sub(r"\1", label)


def unknown_label(labels: Collection[str]) -> Callable[[ReadExample], NunatakError | None]:
    shown = ", ".join(map(repr, list(labels)[:20]))

    def fault(read: ReadExample) -> NunatakError | None:
        shares = dict(read.example.shares)
        strange = next((it for it in (*_names(read), *shares) if it not in labels), None)
        if labels and strange is not None:
            return NunatakError("unknown_label", where=read.where, label=strange, known=shown)
        lacking = next((it for it in labels if shares and it not in shares), None)
        if lacking is not None:
            return bad_row(read.where, f"the probability of label {lacking!r} is missing")
        return None

    return fault


def lone_label(
    train: Iterable[ReadExample], kind: TaskKind
) -> Callable[[ReadExample], NunatakError | None]:
    is_single = kind is TaskKind.SINGLE_LABEL
    sizes = Counter(_first_name(it) for it in train if is_single)
    twins = dict(look_alikes(sizes))

    def fault(read: ReadExample) -> NunatakError | None:
        label = _first_name(read) if sizes else ""
        if sizes[label] != 1 or len(sizes) < 2:
            return None
        hint = f" (is it {twins[label]!r}?)" if label in twins else ""
        if VALUE.fullmatch(label):
            hint = " (for values, the kind is regression)"
        return too_few(
            read.where,
            f"label {label!r} has 1 train example{hint}; give it at least 2, or remove the row",
        )

    return fault


def draw_dev(examples: list[ReadExample], kind: TaskKind, *, seed: int, name: str) -> Parts:
    """A part of every class, or whole groups of a ranking; the rest must still teach the task."""
    match kind:
        case TaskKind.SINGLE_LABEL:
            in_dev = _share_of_labels(examples, seed=seed)
            lacking = "expected a label with at least 2 distinct texts, to keep one for dev"
        case TaskKind.RANKING:
            in_dev = _whole_groups(examples, seed=seed)
            lacking = "expected 2 queries with a grade above 0, to keep one for dev"
        case _:
            in_dev = _texts_to_spare(examples, seed=seed)
            lacking = (
                "every distinct text has a label of its own, or all texts are equal, so none can "
                "be kept for dev"
            )
            if len(examples) < 2:
                lacking = "expected at least 2 examples, to keep one for dev"
    if not in_dev:
        raise too_few(name, lacking)
    train = [read for position, read in enumerate(examples) if position not in in_dev]
    dev = [read for position, read in enumerate(examples) if position in in_dev]
    if (problem := sameness((it.example.label for it in train), kind)) is not None:
        raise too_few(
            name,
            f"without the dev examples, {problem}; name a dev file or give more train examples",
        )
    return train, dev


def majority(labels: Iterable[Label]) -> tuple[str, float] | None:
    """The most frequent of single labels with its share: the accuracy of a constant."""
    counts = Counter(label for label in labels if isinstance(label, str))
    if not counts:
        return None
    ((label, count),) = counts.most_common(1)
    return label, count / counts.total()


def _names(read: ReadExample) -> tuple[str, ...]:
    return names_in(read.example.label)


def _first_name(read: ReadExample) -> str:
    return names_in(read.example.label)[0]


def _graded(read: ReadExample) -> tuple[str, float]:
    label = read.example.label
    return (label.group, label.grade) if isinstance(label, Relevance) else ("", 0.0)


_OF_BOTH = "remove them from one part; a score of texts that training has seen is too high"


class DataProblem(StrEnum):
    """Problems of examples that have a valid form but harm training or scores; ways out of them."""

    advice: str

    IN_TRAIN_AND_DEV = "in train and dev", _OF_BOTH
    IN_TRAIN_AND_TEST = "in train and test", _OF_BOTH
    CONTRADICTION = (
        "different labels for one text",
        "keep one label for each text; nothing can be learnt from a contradiction",
    )
    WHITE_SPACE = (
        "white space around labels",
        "remove the white space; it makes another label, and callers must send it exactly",
    )
    LOOK_ALIKE = (
        "labels that look alike",
        "write one label in one way; each way is a label of its own to the task",
    )
    IMBALANCE = (
        "label imbalance",
        "add examples of rare labels, and choose the epoch by metric=f1_macro",
    )
    CUT = (
        "longer than max_length",
        (
            "raise max_length; training and scoring read only the beginning, whatever on_long "
            "says of the server"
        ),
    )
    ONE_ANSWER = (
        "dev examples with one label",
        "give dev examples of other labels too; no score tells a task from a constant answer",
    )

    def __new__(cls, value: str, advice: str) -> Self:
        problem = str.__new__(cls, value)
        problem._value_, problem.advice = value, advice
        return problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWarning:
    """One problem of the data, with its extent."""

    problem: DataProblem
    found: str


def data_warnings(
    data: TaskData, *, num_long: tuple[int, int] = (0, 0), max_length: int
) -> tuple[DataWarning, ...]:
    """The suspicious properties of the examples; `num_long` train and dev examples are too long."""
    found = {
        DataProblem.IN_TRAIN_AND_DEV: _shared(data, data.dev),
        DataProblem.IN_TRAIN_AND_TEST: _shared(data, data.test or ExampleSet(examples=())),
    }
    if data.kind in NAMED_KINDS:
        found[DataProblem.CONTRADICTION] = _contradictions(data)
        padded = [label for label in data.labels if label != label.strip()]
        found[DataProblem.WHITE_SPACE] = (
            f"{counted(len(padded), 'label')}, such as {padded[0]!r}" if padded else ""
        )
        found[DataProblem.LOOK_ALIKE] = _look_alikes(data)
    if data.kind is TaskKind.SINGLE_LABEL:
        found[DataProblem.IMBALANCE] = _imbalance(data)
    if not data.kind.head.reads_tokens:
        found[DataProblem.CUT] = _cut(data, num_long, max_length)
    if data.kind in TEXT_KINDS:
        found[DataProblem.ONE_ANSWER] = _one_answer(data.dev)
    return tuple(DataWarning(problem=it, found=text) for it, text in found.items() if text)


def _one_answer(dev: ExampleSet) -> str:
    answers = {str(label_json(example.label)) for example in dev.examples}
    if len(answers) > 1 or len(dev) < 2:
        return ""
    return f"all {counted(len(dev), 'example')}: {_shown(answers.pop())}"


def _shared(data: TaskData, part: ExampleSet) -> str:
    trained = {example.same_text for example in data.train.examples}
    both = [example.text for example in part.examples if example.same_text in trained]
    if not both:
        return ""
    return f"{len(both):,} of {counted(len(part), 'example')}, such as {_shown(both[0])}"


def _contradictions(data: TaskData) -> str:
    labels: defaultdict[TextInput, set[str]] = defaultdict(set)
    for example in (*data.train.examples, *data.dev.examples):
        labels[example.model_input].add(str(label_json(example.label)))
    torn = [text for text, found in labels.items() if len(found) > 1]
    if not torn:
        return ""
    first = min(torn, key=str)
    shown = _shown(first if isinstance(first, str) else first[0])
    return f"{counted(len(torn), 'text')}, such as {shown}"


def _look_alikes(data: TaskData) -> str:
    names = (name for it in data.train.examples for name in names_in(it.label))
    if data.kind is TaskKind.TOKEN_CLASSIFICATION:
        # `B-PER` and `I-PER` are one letter apart, and right.
        names = (name[2:] if name[1:2] == "-" else name for name in names)
    counts = Counter(names)
    pairs = look_alikes(counts)
    shown = ", ".join(
        " and ".join(
            f"{shown} ({counts[label]:,})"
            for label, shown in zip(pair, spelt_out(*pair), strict=True)
        )
        for pair in pairs[:SHOWN_PAIRS]
    )
    more = ", ..." if len(pairs) > SHOWN_PAIRS else ""
    return f"{counted(len(pairs), 'pair')}: {shown}{more}" if pairs else ""


def _imbalance(data: TaskData) -> str:
    counts = Counter(data.train.labels(str)).most_common()
    (common, most), (rare, least) = counts[0], counts[-1]
    if most < MAX_IMBALANCE * least:
        return ""
    return f"{counted(most, 'train example')} of {common!r}, {least:,} of {rare!r}"


def _cut(data: TaskData, num_long: tuple[int, int], max_length: int) -> str:
    sizes = (len(data.train), len(data.dev))
    shares = (long / size for long, size in zip(num_long, sizes, strict=True))
    if max(shares) <= LONG_SHARE_TO_WARN_OF:
        return ""
    return (
        f"{num_long[0]:,} of {sizes[0]:,} train examples and {num_long[1]:,} of {sizes[1]:,} dev "
        f"examples have more than {max_length} tokens"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
