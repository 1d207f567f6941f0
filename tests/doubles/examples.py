"""A toy task that any encoder can learn, and a report that records its calls."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from nunatak_training.data import Answers, AnswerSpan, Example, ExampleSet, TaskData
from nunatak_training.data.sources import load_labelled, load_test_rows
from nunatak_training.kinds import TaskKind
from nunatak_training.report import EpochResult, Report

ALPHABETS = {"early": "ab", "late": "yz"}
NAMES = ("Ada", "I", "x", "St. John")
SHORT_TRAINING: dict[str, JsonValue] = {
    "min_steps": 0,
    "batch_size": 8,
    "max_length": 32,
    # Width 32 needs larger steps than the default rates, which are for larger widths.
    "learning_rate": 5e-3,
    "head_learning_rate": 2e-2,
}
"""Settings with which a tiny backbone learns a toy task in a few epochs."""


def toy_examples(count: int, *, seed: int = 0) -> tuple[Example, ...]:
    """Return texts of letters from one end of the alphabet or the other, labels in turn."""
    source = random.Random(seed)
    labels = sorted(ALPHABETS)
    return tuple(
        Example(
            text=" ".join(source.choices(ALPHABETS[label], k=source.randint(4, 9))), label=label
        )
        for label in (labels[number % len(labels)] for number in range(count))
    )


def toy_data(*, num_train: int = 64, num_dev: int = 16) -> TaskData:
    return TaskData(
        name="toy",
        train=ExampleSet(examples=toy_examples(num_train, seed=1)),
        dev=ExampleSet(examples=toy_examples(num_dev, seed=2)),
        labels=tuple(sorted(ALPHABETS)),
    )


def noisy_data(*, num_train: int = 60, num_dev: int = 120, num_test: int = 200) -> TaskData:
    """Return the toy task with every fifth label wrong, so that no scores can be right."""
    data = toy_data(num_train=num_train, num_dev=num_dev + num_test)
    dev = _noisy(data.dev.examples)
    return replace(
        data,
        train=ExampleSet(examples=_noisy(data.train.examples)),
        dev=ExampleSet(examples=dev[:num_dev]),
        test=ExampleSet(examples=dev[num_dev:]),
    )


def _noisy(examples: Sequence[Example]) -> tuple[Example, ...]:
    wrong = {"early": "late", "late": "early"}
    return tuple(
        replace(it, label=it.label if number % 5 else wrong[str(it.label)])
        for number, it in enumerate(examples)
    )


def load_examples(path: str | Path, *, kind: TaskKind | None = None) -> list[Example]:
    """Read the examples of one file; without a kind, the first row decides."""
    if kind is None:
        return [it.example for it in load_labelled(Path(path))[1]]
    return [it.example for it in load_test_rows(path, kind=kind, labels=())]


def load_test_set(path: Path, data: TaskData) -> ExampleSet:
    """Read a file of examples to score a task that was trained on `data`."""
    read = load_test_rows(path, kind=data.kind, labels=data.labels)
    return ExampleSet(examples=tuple(it.example for it in read))


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def rows_of(examples: Sequence[Example]) -> list[dict[str, object]]:
    return [{"text": example.text, "label": example.label} for example in examples]


class RecordingReport(Report):
    """Remembers every call of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.num_prepared = 0
        self.num_steps = 0
        self.num_epochs = 0
        self.num_resumed = 0
        self.losses: list[float] = []
        self.epochs: list[EpochResult] = []
        self.times_ended = 0

    def prepared(self, done: int, num_inputs: int) -> None:
        self.num_prepared = done

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        self.num_steps = num_steps
        self.num_epochs = num_epochs

    def resumed(self, *, num_steps: int) -> None:
        self.num_resumed = num_steps

    def stepped(self, *, loss: float) -> None:
        self.losses.append(loss)

    def evaluated(self, result: EpochResult) -> None:
        self.epochs.append(result)

    def ended(self) -> None:
        self.times_ended += 1


def toy_rows(kind: TaskKind, count: int, *, seed: int = 0) -> list[dict[str, JsonValue]]:
    """Return rows of a toy task of any kind; the right answer depends on the letters alone."""
    source = random.Random(seed)
    return [_toy_row(kind, number, source) for number in range(count)]


def _toy_row(kind: TaskKind, number: int, source: random.Random) -> dict[str, JsonValue]:
    label = sorted(ALPHABETS)[number % 2]
    letters = source.choices(ALPHABETS[label], k=source.randint(4, 9))
    text = " ".join(letters)
    mixed = source.choices("abyz", k=source.randint(4, 9))
    match kind:
        case TaskKind.SINGLE_LABEL:
            return {"text": text, "label": label}
        case TaskKind.MULTI_LABEL:
            names = [name for name, alphabet in ALPHABETS.items() if set(mixed) & set(alphabet)]
            return {"text": " ".join(mixed), "labels": list[JsonValue](names)}
        case TaskKind.REGRESSION:
            late = sum(letter in ALPHABETS["late"] for letter in mixed)
            return {"text": " ".join(mixed), "label": 100.0 + 50.0 * late / len(mixed)}
        case TaskKind.TOKEN_CLASSIFICATION:
            tags: list[JsonValue] = [
                "B-late" if letter in ALPHABETS["late"] else "O" for letter in mixed
            ]
            return {"tokens": list[JsonValue](mixed), "tags": tags}
        case TaskKind.QUESTION_ANSWERING:
            place = source.randrange(len(letters))
            context = " ".join([*letters[:place], "q", *letters[place:]])
            answers: list[JsonValue] = [{"text": "q", "answer_start": 2 * place}]
            return {"question": "q?", "context": context, "answers": answers}
        case TaskKind.RANKING:
            documents = [" ".join(source.choices(ALPHABETS[name], k=5)) for name in ALPHABETS]
            return {
                "query": f"late {number}",
                "documents": list[JsonValue](documents),
                "relevance": [0, 1],
            }


def _name_question(number: int) -> Example:
    """A context with one name, and a question for the name."""
    chance = random.Random(number)
    name = chance.choice(NAMES)
    before = chance.choice(("a report", "the copy", "it was said in London")) + " by "
    context = f"{before}{name} in {chance.choice(('London', 'a copy'))}"
    span = AnswerSpan(text=name, begin=len(before))
    return Example(text="by whom?", text_pair=context, label=Answers(spans=(span,)))


def name_questions() -> TaskData:
    """Questions for a name of one or two words, one letter the shortest."""
    examples = [_name_question(number) for number in range(80)]
    return TaskData(
        name="names",
        kind=TaskKind.QUESTION_ANSWERING,
        train=ExampleSet(examples=tuple(examples[:64])),
        dev=ExampleSet(examples=tuple(examples[64:])),
        labels=(),
    )
