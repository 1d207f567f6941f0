"""The checks of a whole task, the names of its logits, and the drawing of a dev part."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable

from nunatak_contract.errors import NunatakError
from nunatak_training.data.examples import (
    Answers,
    Label,
    LabelSet,
    ReadExample,
    Relevance,
    TaggedWords,
    sorted_labels,
)
from nunatak_training.kinds import TaskKind

DEV_SHARE = 0.1

PartOf = Callable[[ReadExample], str]
VALUE_NAME = "value"
"""The label of a regression's one output."""


def split_off_share(
    examples: list[ReadExample], *, stratum_of: PartOf, seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, in the given order, with `DEV_SHARE` of every stratum in dev.

    Each stratum must have two examples, because each side gets at least one. The same examples and
    seed give the same split.
    """
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, read in enumerate(examples):
        positions[stratum_of(read)].append(position)
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev: set[int] = set()
    for stratum in sorted(positions):
        members = positions[stratum]
        in_dev.update(generator.sample(members, max(1, round(DEV_SHARE * len(members)))))
    return _parts(examples, in_dev)


def split_off_named(
    examples: list[ReadExample], *, names_of: Callable[[ReadExample], Collection[str]], seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, in the given order, with up to `DEV_SHARE` in dev.

    Every name in dev also occurs in train. Dev is empty if no example can leave train. The same
    examples and seed give the same split.
    """
    names = [frozenset(names_of(read)) for read in examples]
    size = max(1, round(DEV_SHARE * len(examples)))
    kept = set[int]()
    while len(kept) < len(examples):
        candidates = [position for position in range(len(examples)) if position not in kept]
        generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
        in_dev = set(generator.sample(candidates, min(size, len(candidates))))
        left = frozenset[str]().union(
            *(found for position, found in enumerate(names) if position not in in_dev)
        )
        needed = {position for position in in_dev if not names[position] <= left}
        if not needed:
            return _parts(examples, in_dev)
        kept |= needed
    return examples, []


def split_off_groups(
    examples: list[ReadExample], *, group_of: PartOf, seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, in the given order, with `DEV_SHARE` of the whole groups in dev.

    There must be two groups. The same examples and seed give the same split.
    """
    groups = sorted({group_of(read) for read in examples})
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev = set(generator.sample(groups, max(1, round(DEV_SHARE * len(groups)))))
    train = [read for read in examples if group_of(read) not in in_dev]
    dev = [read for read in examples if group_of(read) in in_dev]
    return train, dev


def _parts(
    examples: list[ReadExample], in_dev: set[int]
) -> tuple[list[ReadExample], list[ReadExample]]:
    train = [read for position, read in enumerate(examples) if position not in in_dev]
    dev = [read for position, read in enumerate(examples) if position in in_dev]
    return train, dev


def names_in(label: Label) -> tuple[str, ...]:
    """Return the names in a label: of a class, of labels or of tags."""
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
    """Return if train examples can teach a task.

    Raises:
        NunatakError: `too_few_examples`, all labels are equal, or a class has a single example.
    """
    if not train:
        raise NunatakError("too_few_examples", where=name, problem="there are no train examples")
    if kind is TaskKind.SINGLE_LABEL:
        _check_classes(train, name)
    elif (problem := sameness(map(_label, train), kind)) is not None:
        raise NunatakError("too_few_examples", where=name, problem=problem)


def sameness(train: Iterable[Label], kind: TaskKind) -> str | None:
    """Return the problem of train labels that are all equal; None if they differ."""
    labels = set(train)
    names = {name for label in labels for name in names_in(label)}
    match kind:
        case TaskKind.MULTI_LABEL if not names:
            return "no train example has a label"
        case TaskKind.TOKEN_CLASSIFICATION if len(names) < 2:
            return f"expected train examples of at least 2 tags, got {sorted(names)}"
        case TaskKind.REGRESSION | TaskKind.RANKING if len({_number(it) for it in labels}) < 2:
            return "all train examples have the same value"
        case TaskKind.QUESTION_ANSWERING if labels == {Answers(spans=())}:
            return "no train example has an answer"
        case _:
            return None


def label_names(train: list[ReadExample], kind: TaskKind) -> tuple[str, ...]:
    """Return the names of the logits, in order."""
    if kind is TaskKind.REGRESSION:
        return (VALUE_NAME,)
    return sorted_labels(label for read in train for label in names_in(read.example.label))


def check_scored(
    examples: list[ReadExample], labels: tuple[str, ...], name: str, *, split: str
) -> None:
    """Return if a task with these labels can be scored on the examples of a split.

    Raises:
        NunatakError: `too_few_examples`, there are no examples, or no ranking has a right document.
        NunatakError: `unknown_label`, an example has a label that no train example has.
    """
    if not examples:
        raise NunatakError("too_few_examples", where=name, problem=f"there are no {split} examples")
    known = set(labels)
    for read in examples:
        for label in names_in(read.example.label):
            if label not in known:
                shown = ", ".join(map(repr, labels[:20]))
                raise NunatakError("unknown_label", where=read.where, label=label, known=shown)
    grades = _grades(examples)
    if grades and max(grades) <= 0:
        raise NunatakError(
            "too_few_examples",
            where=name,
            problem=f"no {split} document has a grade above 0, so no ranking can be right",
        )


def draw_dev(
    examples: list[ReadExample], kind: TaskKind, *, seed: int, name: str
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split train examples into train and dev: a part of every class, or whole groups of a ranking.

    The remaining train examples must still teach the task.

    Raises:
        NunatakError: `too_few_examples`, there are too few examples to split.
    """
    train, dev = _drawn(examples, kind, seed=seed, name=name)
    if (problem := sameness(map(_label, train), kind)) is not None:
        raise NunatakError(
            "too_few_examples",
            where=name,
            problem=f"without the dev examples, {problem}; name a dev file or give more train "
            "examples",
        )
    return train, dev


def _drawn(
    examples: list[ReadExample], kind: TaskKind, *, seed: int, name: str
) -> tuple[list[ReadExample], list[ReadExample]]:
    match kind:
        case TaskKind.SINGLE_LABEL:
            return split_off_share(examples, stratum_of=_first_name, seed=seed)
        case TaskKind.RANKING:
            if len({_group(read) for read in examples}) < 2:
                raise NunatakError(
                    "too_few_examples",
                    where=name,
                    problem="expected at least 2 queries, to keep one for dev",
                )
            return split_off_groups(examples, group_of=_group, seed=seed)
        case _:
            if len(examples) < 2:
                raise NunatakError(
                    "too_few_examples",
                    where=name,
                    problem="expected at least 2 examples, to keep one for dev",
                )
            train, dev = split_off_named(examples, names_of=_names, seed=seed)
            if not dev:
                raise NunatakError(
                    "too_few_examples",
                    where=name,
                    problem="every example has its own label, so none can be kept for dev",
                )
            return train, dev


def _check_classes(train: list[ReadExample], name: str) -> None:
    sizes = Counter(_first_name(read) for read in train)
    if len(sizes) < 2:
        raise NunatakError(
            "too_few_examples",
            where=name,
            problem=f"expected train examples of at least 2 labels, got {sorted(sizes)}",
        )
    for read in train:
        label = _first_name(read)
        if sizes[label] == 1:
            raise NunatakError(
                "too_few_examples",
                where=read.where,
                problem=f"label {label!r} has 1 train example; give it at least 2, or remove the "
                "row",
            )


def _label(read: ReadExample) -> Label:
    return read.example.label


def _names(read: ReadExample) -> tuple[str, ...]:
    return names_in(read.example.label)


def _first_name(read: ReadExample) -> str:
    return names_in(read.example.label)[0]


def _number(label: Label) -> object:
    return label.grade if isinstance(label, Relevance) else label


def _grades(examples: list[ReadExample]) -> list[float]:
    labels = (read.example.label for read in examples)
    return [label.grade for label in labels if isinstance(label, Relevance)]


def _group(read: ReadExample) -> str:
    label = read.example.label
    return label.group if isinstance(label, Relevance) else ""
