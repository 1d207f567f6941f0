"""The lines of the papers' runs: one line of JSON a run, kept in the repository for ever.

A line has settings, seed, scores of every epoch, the score of the best constant answer, seconds and
the machine's CPU. It has no paths and no names of machines.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from benchmarks.harness.recording import FIGURES
from nunatak_contract.errors import NunatakError
from nunatak_training.data import ExampleSet, TaggedWords, TaskData
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.scoring.statistics import LABEL_METRICS, Statistics, count_items, placed
from nunatak_training.sweeps.results import Finished, RunRecord

LINES = FIGURES.parent / "papers"


class PaperRun(RunRecord):
    """One run of a paper's table."""

    majority: float | None
    """The best score of a constant answer on the scored examples; None where none is defined."""
    hardware: str
    transfer: dict[str, float] = Field(default_factory=dict)
    """Scores on sets of other languages, in the run's metric."""

    @property
    def last_score(self) -> float:
        """The dev score of the last epoch, which no example has chosen."""
        return self.finished.epochs[-1].dev_score

    @property
    def finished(self) -> Finished:
        if not isinstance(self.outcome, Finished):
            raise TypeError(f"the run {self.run.digest} failed: {self.outcome.message}")
        return self.outcome

    def line(self) -> str:
        """The run as one line; settings that have their defaults are left out of the recipe."""
        recipe = self.run.recipe
        whole = recipe.model_dump(mode="json", include={"method", "regularizer"})
        changed = recipe.model_dump(mode="json", exclude_defaults=True)
        described = self.model_copy(update={"origin": None}).model_dump(mode="json")
        described["run"]["recipe"] = {**changed, **whole}
        return (
            type(self)
            .model_validate(described)
            .model_dump_json(
                exclude={
                    "origin": True,
                    "run": {"recipe": set(recipe.settings()) - {*changed, *whole}},
                }
            )
        )


def read_lines(file: Path) -> tuple[PaperRun, ...]:
    """Return the runs of a file; none if there is no file."""
    return tuple(_runs(file)) if file.exists() else ()


def _runs(file: Path) -> Iterator[PaperRun]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield PaperRun.model_validate_json(line)
        except ValidationError as error:
            problem = f"line {number}: {str(error).splitlines()[0]}"
            raise NunatakError("corrupt_result", file=file.name, problem=problem) from error


def append_line(file: Path, run: PaperRun) -> None:
    """Add a run at the end of a file, after the rest of a killed write is cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = file.read_bytes() if file.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    with file.open("r+b" if text else "wb") as lines:
        lines.truncate(len(whole))
        lines.seek(len(whole))
        lines.write(f"{run.line()}\n".encode())


def majority_score(
    data: TaskData, examples: ExampleSet, metric: Metric, positive_label: str | None
) -> float | None:
    """The best score of a constant answer; 0 for entities and for the rank of equal values."""
    if metric in {Metric.SPEARMAN, Metric.ENTITY_F1}:
        return 0.0
    if metric not in LABEL_METRICS:
        return None
    if data.kind is TaskKind.TOKEN_CLASSIFICATION:
        expected = [word.tag for it in examples.labels(TaggedWords) for word in it.words]
    elif data.kind is TaskKind.SINGLE_LABEL:
        expected = examples.labels(str)
    else:
        return None
    return max(
        score(metric, expected, [label] * len(expected), positive_label=positive_label)
        for label in data.labels
    )


def score(
    metric: Metric,
    expected: Sequence[str],
    predicted: Sequence[str],
    *,
    positive_label: str | None = None,
) -> float:
    """Score predicted labels; `Metric.F1` is the F1 of `positive_label`."""
    names = sorted({*expected, *predicted, *(() if positive_label is None else (positive_label,))})
    right, found = (placed([it] for it in units) for units in (expected, predicted))
    counts = count_items(names, right, found, positive_label)
    statistics = Statistics(num_units=len(expected), by_metric=counts.statistics(metric))
    return statistics.value(metric)
