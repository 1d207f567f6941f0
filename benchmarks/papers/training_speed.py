"""Training: the top 3 of 12 layers, here and with transformers' Trainer, in turns.

The backbone has the shape of BERT base and random weights. The label of a text is the half of the
vocabulary from which most of its words come. Lengths are log-normal. Trainer pads each batch to its
longest text, which is its default. Optimizer, rates, schedule, batches, epochs and evaluation are
the same. Each of our runs begins without trunk states. A sweep shares the states between its runs.

No run warms up, because a run takes many seconds.

The dev scores are printed. If they differ by more than chance allows, nothing is recorded.
"""

# transformers and torch type some of their functions partly.
# pyright: reportUnknownMemberType=false

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from benchmarks.harness.recording import figures_parser, open_sheet
from benchmarks.harness.rounds import interleave, ratios
from benchmarks.harness.workload import lognormal_lengths
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, load_backbone
from nunatak_training.data import Example, ExampleSet, TaskData
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import Metric
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import SilentReport
from nunatak_training.trunk import DiskTrunkStore

NUM_LAYERS, TUNED_LAYERS, EPOCHS, BATCH_SIZE, MAX_LENGTH = 12, 3, 3, 16, 128
NUM_TRAIN, NUM_SWEPT, NUM_DEV = 96, 32, 32
WORDS = 8
LEARNING_RATES, SEEDS = (5e-5, 1e-4, 2e-4, 3e-4, 5e-4), (0, 1, 2)
LEARNING_RATE = 1e-4
SCORE_TOLERANCE = 0.25
"""Two standard errors of the difference of two accuracies of one half on 32 texts."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One training run."""

    seconds: float
    score: float


def main() -> None:
    """Race single runs and sweeps, and record our speed-ups."""
    _, sheet = open_sheet(figures_parser(__doc__, rounds=2))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = save_backbone(folder / "backbone")
        backbone = load_backbone(folder / "backbone")
        data, swept = make_data(NUM_TRAIN), make_data(NUM_SWEPT)
        scores: dict[str, list[float]] = {}

        def clock(who: str, run: Callable[[], Ran]) -> Callable[[], float]:
            def seconds() -> float:
                ran = run()
                scores.setdefault(who, []).append(ran.score)
                print(f"{who}: {ran.seconds:.1f} s, dev accuracy {ran.score:.3f}", flush=True)
                return ran.seconds

            return seconds

        def theirs(num_frozen: int | None) -> Ran:
            return train_theirs(folder / "backbone", tokenizer, data, num_frozen=num_frozen)

        frozen = NUM_LAYERS - TUNED_LAYERS
        times = interleave(
            {
                "nunatak": clock("nunatak", lambda: train_ours(data, backbone)),
                "trainer_frozen": clock("trainer_frozen", lambda: theirs(frozen)),
                "trainer_full": clock("trainer_full", lambda: theirs(None)),
            },
            sheet.rounds,
            warm_up=0,
        )
        sweeps = interleave(
            {
                "nunatak": clock("nunatak sweep", lambda: sweep_ours(swept, backbone)),
                "trainer": clock(
                    "trainer sweep", lambda: sweep_theirs(folder / "backbone", tokenizer, swept)
                ),
            },
            1,
            warm_up=0,
        )
    check_scores(scores)
    for who, goal in (("trainer_frozen", ">= 2"), ("trainer_full", ">= 3")):
        identifier = f"training.speed.vs_{who}"
        sheet.record(identifier, ratios(times, who, "nunatak"), unit="x", goal=goal)
    sweep_ratios = ratios(sweeps, "trainer", "nunatak")
    sheet.record("training.speed.sweep", sweep_ratios, unit="x", goal=">= 3")


def check_scores(scores: dict[str, list[float]]) -> None:
    """Stop unless our dev scores equal those of Trainer with frozen layers, up to chance."""
    for ours, theirs in (("nunatak", "trainer_frozen"), ("nunatak sweep", "trainer sweep")):
        difference = abs(mean(scores[ours]) - mean(scores[theirs]))
        if difference > SCORE_TOLERANCE:
            raise SystemExit(f"{ours} and {theirs} differ by {difference:.3f} in dev accuracy")


def save_backbone(folder: Path) -> PreTrainedTokenizerFast:
    """Write a model of BERT base's shape with random weights; each word is one token."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *map(_word, range(WORDS))))}
    rust = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token, no secret
    rust.pre_tokenizer = Whitespace()
    rust.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="[PAD]")  # noqa: S106
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=30_522)).save_pretrained(folder)
    return tokenizer


def make_data(num_train: int) -> TaskData:
    """Return texts of log-normal lengths; the label is the vocabulary's half with most words."""
    lengths = lognormal_lengths(num_train + NUM_DEV)
    source = random.Random(0)
    examples = tuple(
        Example(text=_text(length, number % 2, source), label=("low", "high")[number % 2])
        for number, length in enumerate(lengths)
    )
    return TaskData(
        name="halves",
        train=ExampleSet(examples=examples[:num_train]),
        dev=ExampleSet(examples=examples[num_train:]),
        labels=("high", "low"),
    )


def _text(length: int, half: int, source: random.Random) -> str:
    words = range(half * WORDS // 2, (half + 1) * WORDS // 2)
    return " ".join(_word(source.choice(words)) for _ in range(length))


def _word(number: int) -> str:
    return f"w{number}"


def recipe_of(*, rate: float = LEARNING_RATE, seed: int = 0) -> Recipe:
    """Return our recipe; the arguments of Trainer below have the same values."""
    changes = {
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "max_length": MAX_LENGTH,
        "learning_rate": rate,
        "head_learning_rate": rate,
        "warmup_share": 0.0,
        "pooling": "first",
        "dense": True,
        "seed": seed,
    }
    return default_recipe(TopK(num_layers=TUNED_LAYERS), changes=changes)


def train_ours(
    data: TaskData,
    backbone: Backbone,
    trunks: DiskTrunkStore | None = None,
    *,
    rate: float = LEARNING_RATE,
    seed: int = 0,
) -> Ran:
    """Train once; without `trunks`, the run computes its own trunk states."""
    started = time.perf_counter()
    recipe = recipe_of(rate=rate, seed=seed)
    trained = fit_task(data, recipe, backbone, report=SilentReport(), trunks=trunks)
    return Ran(seconds=time.perf_counter() - started, score=trained.scores[Metric.ACCURACY])


def sweep_ours(data: TaskData, backbone: Backbone) -> Ran:
    """Train with all learning rates and seeds, on one cache that is empty at first."""
    with TemporaryDirectory() as folder:
        store = DiskTrunkStore(Path(folder))
        return _total(
            train_ours(data, backbone, store, rate=rate, seed=seed)
            for rate, seed in itertools.product(LEARNING_RATES, SEEDS)
        )


def train_theirs(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    data: TaskData,
    *,
    num_frozen: int | None,
    rate: float = LEARNING_RATE,
    seed: int = 0,
) -> Ran:
    """Run Trainer once; freeze the embeddings and the lowest `num_frozen` layers, or nothing."""
    torch.manual_seed(seed)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
    if num_frozen is not None:
        for part in (model.bert.embeddings, *model.bert.encoder.layer[:num_frozen]):
            part.requires_grad_(requires_grad=False)
    train, dev = (_rows(part, tokenizer, data.labels) for part in (data.train, data.dev))
    with TemporaryDirectory() as output:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=output,
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=BATCH_SIZE,
                per_device_eval_batch_size=64,
                learning_rate=rate,
                weight_decay=0.01,
                eval_strategy="epoch",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                seed=seed,
            ),
            train_dataset=cast("Any", train),
            eval_dataset=cast("Any", dev),
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=_accuracy,
        )
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        scores = [
            float(entry["eval_accuracy"])
            for entry in trainer.state.log_history
            if "eval_accuracy" in entry
        ]
    return Ran(seconds=seconds, score=max(scores))


def sweep_theirs(folder: Path, tokenizer: PreTrainedTokenizerFast, data: TaskData) -> Ran:
    """Train with all learning rates and seeds, one after another."""
    frozen = NUM_LAYERS - TUNED_LAYERS
    return _total(
        train_theirs(folder, tokenizer, data, num_frozen=frozen, rate=rate, seed=seed)
        for rate, seed in itertools.product(LEARNING_RATES, SEEDS)
    )


def _total(runs: Iterable[Ran]) -> Ran:
    made = list[Ran](runs)
    return Ran(seconds=sum(ran.seconds for ran in made), score=mean(ran.score for ran in made))


def _rows(
    examples: ExampleSet, tokenizer: PreTrainedTokenizerFast, labels: tuple[str, ...]
) -> list[dict[str, Any]]:
    return [
        {
            **tokenizer(example.text, truncation=True, max_length=MAX_LENGTH),
            "labels": labels.index(str(example.label)),
        }
        for example in examples.examples
    ]


def _accuracy(predictions: Any) -> dict[str, float]:  # noqa: ANN401 - transformers' own tuple
    logits, labels = predictions
    return {"accuracy": float((logits.argmax(axis=-1) == labels).mean())}


if __name__ == "__main__":
    main()
