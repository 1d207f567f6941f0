"""The loop alone: a linear classifier over token counts stands in for the encoder."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from doubles.examples import RecordingReport
from nunatak_contract.methods import HeadOnly
from nunatak_model import Encoding
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.loop.checkpoint import LoopState
from nunatak_training.loop.fit import EncodedSet, fit, predict
from nunatak_training.recipes import Recipe, default_recipe

VOCABULARY = 6
SETTINGS = {"epochs": 4, "min_steps": 0, "batch_size": 8, "learning_rate": 0.1}


class CountingClassifier:
    """Logits that are linear in the counts of a text's tokens, multiplied by `scale`."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.parameters = {
            "head.output.weight": torch.zeros(2, VOCABULARY),
            "head.output.bias": torch.zeros(2),
        }
        self.seen_dropout: set[float] = set()
        self.seen_batches: list[int] = []
        self._scale = scale

    def __call__(self, encodings: Sequence[Encoding], *, dropout: float) -> list[Tensor]:
        self.seen_dropout.add(dropout)
        self.seen_batches.append(len(encodings))
        counts = torch.stack(
            [
                torch.bincount(torch.tensor(encoding.token_ids), minlength=VOCABULARY).float()
                for encoding in encodings
            ]
        )
        counts = torch.nn.functional.dropout(counts, dropout, training=dropout > 0)
        weight, bias = self.parameters["head.output.weight"], self.parameters["head.output.bias"]
        return list((counts @ weight.T + bias) * self._scale)


def cross_entropy(logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    return torch.nn.functional.cross_entropy(torch.stack(list(logits)), torch.stack(list(targets)))


def encoding(*token_ids: int) -> Encoding:
    return Encoding(token_ids=token_ids, type_ids=(0,) * len(token_ids))


def separable(count: int, *, seed: int) -> EncodedSet:
    """Tokens of label 1 come from the upper half of the vocabulary."""
    source = random.Random(seed)
    middle = VOCABULARY // 2
    targets = [number % 2 for number in range(count)]
    encodings = [
        encoding(*(source.randrange(middle) + target * middle for _ in range(source.randint(2, 5))))
        for target in targets
    ]
    return EncodedSet(
        encodings=tuple(encodings),
        targets=tuple(torch.tensor(targets).unbind()),
        sizes=(1,) * count,
    )


TRAIN, DEV = separable(36, seed=1), separable(10, seed=2)


def accuracy(logits: Sequence[Tensor]) -> float:
    predicted = torch.stack(list(logits)).argmax(dim=1)
    return (predicted == torch.stack(DEV.targets)).float().mean().item()


def fitted(
    classifier: CountingClassifier,
    recipe: Recipe | None = None,
    report: RecordingReport | None = None,
    dev_score: Callable[[Sequence[Tensor]], float] = accuracy,
) -> LoopState:
    return fit(
        classifier.parameters,
        classifier,
        cross_entropy,
        train=TRAIN,
        dev=DEV,
        recipe=recipe or default_recipe(HeadOnly(), changes=dict(SETTINGS)),
        dev_score=dev_score,
        report=report or RecordingReport(),
    )


def test_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    def weights(seed: int) -> Tensor:
        recipe = default_recipe(HeadOnly(), changes={**SETTINGS, "seed": seed})
        return fitted(CountingClassifier(), recipe).parameters["head.output.weight"]

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_random_state_of_the_caller_is_left_alone() -> None:
    before = torch.get_rng_state()

    fitted(CountingClassifier())

    assert torch.equal(torch.get_rng_state(), before)


def test_result_is_the_epoch_with_the_best_score() -> None:
    scores = iter([0.1, 0.9, 0.9, 0.2])
    classifier = CountingClassifier()
    snapshots: list[Tensor] = []

    def scripted(_: Sequence[Tensor]) -> float:
        snapshots.append(classifier.parameters["head.output.weight"].detach().clone())
        return next(scores)

    result = fitted(classifier, dev_score=scripted)

    losses = [epoch.dev_loss for epoch in result.history]
    assert losses[2] < losses[1], "between equal scores the lower loss is to win"
    assert result.best.epoch == 3
    assert torch.equal(result.best.parameters["head.output.weight"], snapshots[2])


@pytest.mark.parametrize(
    ("scores", "patience", "last", "best"),
    [
        pytest.param([0.5, 0.6, 0.6, 0.6], 2, 4, 4, id="equal-scores-are-no-rise"),
        pytest.param([0.6, 0.5, 0.4], 2, 3, 1, id="falling"),
        pytest.param([0.2, 0.1, 0.3, 0.2, 0.4, 0.3], 2, 6, 5, id="a-rise-begins-the-count-anew"),
        pytest.param([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], None, 6, 1, id="no-patience-runs-all"),
    ],
)
def test_training_ends_when_so_many_scores_in_a_row_were_no_better(
    scores: list[float], patience: int | None, last: int, best: int
) -> None:
    found = iter(scores)
    report = RecordingReport()
    recipe = default_recipe(HeadOnly(), changes={**SETTINGS, "epochs": 6, "patience": patience})

    result = fitted(CountingClassifier(), recipe, report, dev_score=lambda _: next(found))

    assert [epoch.epoch for epoch in result.history] == list(range(1, last + 1))
    assert len(report.losses) == 5 * last
    assert result.best.epoch == best


def test_every_example_is_seen_once_an_epoch_and_dropout_is_off_on_dev() -> None:
    classifier = CountingClassifier()
    recipe = default_recipe(HeadOnly(), changes={**SETTINGS, "epochs": 1, "dropout": 0.3})

    fitted(classifier, recipe)

    assert classifier.seen_batches == [8, 8, 8, 8, 4, 10]
    assert classifier.seen_dropout == {0.3, 0.0}


def test_report_hears_of_every_step_and_epoch() -> None:
    report = RecordingReport()

    result = fitted(CountingClassifier(), report=report)

    assert (report.num_steps, report.num_epochs) == (20, 4)
    assert len(report.losses) == 20
    assert list(report.epochs) == result.history
    assert [epoch.step for epoch in result.history] == [5, 10, 15, 20]
    assert report.times_ended == 1


class SteepClassifier(CountingClassifier):
    """Logits with a finite value and an infinite slope at zero, where the weights begin."""

    def __call__(self, encodings: Sequence[Encoding], *, dropout: float) -> list[Tensor]:
        del dropout
        return list(self.parameters["head.output.weight"][:, 0].sqrt().expand(len(encodings), 2))


@pytest.mark.parametrize(
    "classifier", [CountingClassifier(scale=float("inf")), SteepClassifier()], ids=["loss", "slope"]
)
def test_what_is_no_number_stops_the_run_before_it_moves_anything(
    classifier: CountingClassifier,
) -> None:
    report = RecordingReport()

    with pytest.raises(TrainingDivergedError, match="lower the learning rate") as caught:
        fitted(classifier, report=report)

    assert caught.value.fields["step"] == 1
    assert report.times_ended == 1
    assert not classifier.parameters["head.output.weight"].any()


def test_predictions_come_in_the_order_asked_for() -> None:
    classifier = CountingClassifier()
    classifier.parameters["head.output.weight"][0] = torch.arange(VOCABULARY)
    texts = [encoding(5, 5, 5), encoding(1), encoding(2, 3)] * 50

    logits = torch.stack(predict(classifier, texts))

    assert torch.equal(logits[:, 0], torch.tensor([15.0, 1.0, 5.0] * 50))
    assert not logits.requires_grad
