"""Calibration: the error of scores on unseen examples, before and after `calibrate`.

The default recipe of two top layers trains each set with `calibrate`. The parameters before are
those of the trained version with its temperature taken out of the output layer. Both are scored on
test examples, which neither training nor the temperature has seen. The sets are the five of short
texts with the most test examples. The probabilities come from torch. Sets with a result in the
results folder are not trained again. With `--only`, one set is trained and nothing is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from benchmarks.harness.recording import FIGURES, Sheet, figures_parser, hardware
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry.cards import markdown_table
from nunatak_training.data import ExampleSet, TaskData, load_task_data
from nunatak_training.fitting import TrainedTask, branch_logits, fit_task
from nunatak_training.loop.fit import predict
from nunatak_training.objectives import OUTPUT_BIAS, OUTPUT_WEIGHT
from nunatak_training.recipes import default_recipe
from nunatak_training.report import SilentReport
from nunatak_training.scoring.calibration import calibration_error

SETS = ("banking77", "tweet_hate", "tweet_emotion", "subj", "tweet_irony")
METHOD = TopK(num_layers=2)
PAGE = FIGURES.parent / "calibration.md"
COLUMNS = (
    "set",
    "train / dev / test",
    "temperature",
    "accuracy",
    "changed answers",
    "error before",
    "error after",
    "share",
    "loss before",
    "loss after",
)


class Scored(BaseModel):
    """The scores of one version on test examples."""

    model_config = ConfigDict(frozen=True)

    error: float
    """The expected calibration error in 15 bins."""
    loss: float
    """The mean negative logarithm of the true label's probability."""
    accuracy: float


class Result(BaseModel):
    """A set before and after calibration."""

    model_config = ConfigDict(frozen=True)

    name: str
    num_train: int
    num_dev: int
    num_test: int
    temperature: float
    num_changed: int
    """Test examples with another answer."""
    before: Scored
    after: Scored

    @property
    def share(self) -> float:
        """The share of the error that is left."""
        return self.after.error / self.before.error


def main() -> None:
    """Train the sets that have no result yet, then write the page and the figures of all."""
    parser = figures_parser(__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETS), help="sets to record")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--rows", type=int, default=1000, help="most train examples of a set")
    parser.add_argument("--dev", type=int, default=500, help="most dev examples of a set")
    parser.add_argument("--test", type=int, default=1000, help="most test examples of a set")
    parser.add_argument("--results", type=Path, default=Path(".bench/calibration"))
    parser.add_argument("--only", help="train this set alone")
    parser.add_argument("--reason", help="why a set misses its goal, if one does")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    wanted = options.sets if options.only is None else [options.only]
    sizes = options.rows, options.dev, options.test
    for name in wanted:
        if not _file(options.results, name).exists():
            result = compared(name, cut_data(options.data / name, *sizes), load_backbone())
            text = result.model_dump_json(indent=2)
            _file(options.results, name).write_text(text, encoding="utf-8")
            print(f"{name}: {result.before.error:.4f} -> {result.after.error:.4f}", flush=True)
    if options.only is None:
        found = [_file(options.results, name).read_text(encoding="utf-8") for name in wanted]
        results = [Result.model_validate_json(text) for text in found]
        sheet = Sheet(command=_command(wanted, sizes), file=options.figures, rounds=1)
        record(results, sheet, reason=options.reason)
        PAGE.write_text(page(results, sheet.command, reason=options.reason), encoding="utf-8")


def _command(names: Sequence[str], sizes: tuple[int, int, int]) -> str:
    named = "" if tuple(names) == SETS else f" {' '.join(names)}"
    rows, dev, test = sizes
    return (
        f"python -m benchmarks.papers.calibration{named} --data DATA --rows {rows} --dev {dev} "
        f"--test {test}"
    )


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def cut_data(folder: Path, rows: int, dev: int, test: int) -> tuple[TaskData, ExampleSet]:
    """Return the first train and dev examples of a set, and its first test examples."""
    data = load_task_data(folder)
    if data.test is None:
        raise SystemExit(f"{folder.name} has no test examples")
    cut = replace(
        data,
        train=ExampleSet(examples=data.train.examples[:rows]),
        dev=ExampleSet(examples=data.dev.examples[:dev]),
        test=None,
    )
    return cut, ExampleSet(examples=data.test.examples[:test])


def compared(name: str, data: tuple[TaskData, ExampleSet], backbone: Backbone) -> Result:
    """Train a set, and score it before and after calibration."""
    cut, test = data
    recipe = default_recipe(METHOD, changes={"calibrate": True})
    fitted = fit_task(cut, recipe, backbone, report=SilentReport())
    if fitted.calibration is None:
        raise SystemExit(f"{name} was not calibrated")
    truth = torch.tensor([cut.labels.index(label) for label in test.labels(str)])
    plain = {
        name: tensor * fitted.calibration.temperature
        if name in {OUTPUT_WEIGHT, OUTPUT_BIAS}
        else tensor
        for name, tensor in fitted.parameters.items()
    }
    before, after = (
        logits_of(fitted, parameters, test, backbone) for parameters in (plain, fitted.parameters)
    )
    return Result(
        name=name,
        num_train=len(cut.train),
        num_dev=len(cut.dev),
        num_test=len(test),
        temperature=fitted.calibration.temperature,
        num_changed=int((before.argmax(dim=1) != after.argmax(dim=1)).sum()),
        before=scored(before, truth),
        after=scored(after, truth),
    )


def logits_of(
    trained: TrainedTask,
    parameters: Mapping[str, Tensor],
    examples: ExampleSet,
    backbone: Backbone,
) -> Tensor:
    """Return the logits of parameters, [examples, labels]."""
    inputs = [example.model_input for example in examples.examples]
    encodings = backbone.tokenizer.encode(inputs, max_length=trained.recipe.max_length)
    return torch.stack(predict(branch_logits(backbone, trained.spec, parameters), encodings))


def scored(logits: Tensor, truth: Tensor) -> Scored:
    """Score logits by their softmax."""
    probabilities = logits.double().softmax(dim=1)
    scores, predicted = probabilities.max(dim=1)
    right = (predicted == truth).double()
    return Scored(
        error=calibration_error(scores.numpy(), right.numpy()),
        loss=float(-probabilities.gather(1, truth.unsqueeze(1)).log().mean()),
        accuracy=float(right.mean()),
    )


def record(results: list[Result], sheet: Sheet, *, reason: str | None) -> None:
    """Record the error before and after, and the answers that calibration changed."""
    for it in results:
        unit = f"expected calibration error on {it.num_test} test examples"
        sheet.record(f"calibration.{it.name}.ece_before", [it.before.error], unit=unit)
        sheet.record(f"calibration.{it.name}.ece_after", [it.after.error], unit=unit)
        sheet.record(
            f"calibration.{it.name}.ece_share",
            [it.share],
            unit="of the error before",
            goal="<= 0.5",
            reason=reason if it.share > 0.5 else None,
        )
        sheet.record(
            f"calibration.{it.name}.changed",
            [it.num_changed],
            unit=f"changed answers of {it.num_test}",
            goal="<= 0",
        )


def page(results: list[Result], command: str, *, reason: str | None) -> str:
    """The results as a document."""
    rows = (
        (
            it.name,
            f"{it.num_train:,} / {it.num_dev:,} / {it.num_test:,}",
            f"{it.temperature:.3f}",
            f"{it.before.accuracy:.4f} / {it.after.accuracy:.4f}",
            str(it.num_changed),
            f"{it.before.error:.4f}",
            f"{it.after.error:.4f}",
            f"{it.share:.2f}",
            f"{it.before.loss:.4f}",
            f"{it.after.loss:.4f}",
        )
        for it in results
    )
    missed = "" if reason is None else f"Missed goals: {reason}.\n\n"
    return (
        "# Calibration\n\n"
        "Each set is trained with `--calibrate`: two top layers of MiniLM, by the default recipe.\n"
        "All scores are of test examples, which neither training nor the temperature has seen.\n"
        "The error is the expected calibration error in 15 bins of equal width (Guo et al. 2017),\n"
        "and the loss is the mean negative logarithm of the true label's probability. *Share* is\n"
        "the error after divided by the error before; the goal is at most 0.5. Accuracy is before\n"
        "and after. A perfectly calibrated model has an error of 0.02 to 0.03 on 1,000 examples,\n"
        "by chance alone.\n\n"
        f"{markdown_table(COLUMNS, rows)}\n"
        f"{missed}Command: `{command}`; {hardware()}.\n"
    )


if __name__ == "__main__":
    main()
