"""A toy task any encoder can learn, and a report that remembers what it was told."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from nunatak_training import EpochResult, Example, ExampleSet, TaskData

ALPHABETS = {"early": "ab", "late": "yz"}


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
    """Return the toy task."""
    return TaskData(
        name="toy",
        train=ExampleSet(examples=toy_examples(num_train, seed=1)),
        dev=ExampleSet(examples=toy_examples(num_dev, seed=2)),
        labels=tuple(sorted(ALPHABETS)),
    )


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows as JSON lines; returns the path."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def rows_of(examples: Sequence[Example]) -> list[dict[str, object]]:
    """Return examples as rows of a file."""
    return [{"text": example.text, "label": example.label} for example in examples]


class RecordingReport:
    """Remembers everything a run tells."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_epochs = 0
        self.losses: list[float] = []
        self.epochs: list[EpochResult] = []
        self.times_ended = 0

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        self.num_steps = num_steps
        self.num_epochs = num_epochs

    def stepped(self, *, loss: float) -> None:
        self.losses.append(loss)

    def evaluated(self, result: EpochResult) -> None:
        self.epochs.append(result)

    def ended(self) -> None:
        self.times_ended += 1
