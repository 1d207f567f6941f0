"""What answers by embeddings are worth: questions about five sets, next to trained heads.

A question has an option for each label of a set, as an operator would write it. The backbone
answers as the server does: softmax(cosine / temperature). The temperature with the smallest loss is
found on train examples, which teach nothing else; accuracy and calibration are of test examples.
With `--heads`, heads learn from 8 examples of each label, and from 2,000 examples.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.papers.adopt import DEV_ROWS, read, run
from nunatak_contract.questions import TypedQuestion
from nunatak_model import Backbone, Row, embedding_branch, forward, load_backbone
from nunatak_registry import Registry
from nunatak_server.decisions.likeness import outcome_texts
from nunatak_server.settings import ServerSettings

PREFIX = "decisions.embeddings"
TEMPERATURES: Final = np.geomspace(0.01, 1.0, 41)
AT_ONCE = 64
EXAMPLES_A_LABEL, MANY = 8, 2000
NAMED = {
    "trec": {
        "ABBR": "an abbreviation",
        "DESC": "a description, a definition or a reason",
        "ENTY": "a thing, such as an animal, a colour or a product",
        "HUM": "a person or a group",
        "LOC": "a place",
        "NUM": "a number, a date or an amount",
    },
    "ag_news": {
        "World": "world politics and conflicts",
        "Sports": None,
        "Business": "companies and markets",
        "Sci/Tech": "science and technology",
    },
    "sst2": {"negative": "the review is negative", "positive": "the review is positive"},
    "snips_intent": {
        "AddToPlaylist": "add a song to a playlist",
        "BookRestaurant": "book a restaurant",
        "GetWeather": "get the weather",
        "PlayMusic": "play music",
        "RateBook": "rate a book",
        "SearchCreativeWork": "find a book, a game or another work",
        "SearchScreeningEvent": "find the times of a film",
    },
}
"""The options with their descriptions; a label of another set is an option in plain words."""
SETS = ("banking77", *NAMED)


def main() -> None:
    parser = figures_parser(__doc__, data=True)
    parser.add_argument("sets", nargs="*", default=list(SETS), help="sets to ask about")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--rows", type=int, default=300, help="train examples for the temperature")
    parser.add_argument("--heads", action="store_true", help="train heads as well")
    parser.add_argument("--test", type=int, default=1000, help="most test examples of a set")
    options, sheet = open_sheet(parser)
    backbone, key = load_backbone(options.backbone), Path(options.backbone).name
    losses = [
        record_set(it, options.data / it, key, backbone, sheet, options.rows, options.test)
        for it in options.sets
    ]
    if options.heads:
        for it in options.sets:
            record_heads(it, options.data / it, key, backbone, sheet, options.test)
    best = float(TEMPERATURES[np.mean(losses, axis=0).argmin()])
    unit = f"the temperature with the smallest mean loss of {len(losses)} sets"
    sheet.record(f"{PREFIX}.temperature.{key}", [best], unit=unit)


def record_heads(
    name: str, folder: Path, key: str, backbone: Backbone, sheet: Sheet, test: int
) -> None:
    """Record the test accuracy of heads that `nunatak train` trains on few and on many examples."""
    listed, asked = read(folder, "train"), read(folder, "test")[:test]
    dev, rows = listed[-DEV_ROWS:], listed[:-DEV_ROWS]
    seen = Counter[object]()
    few = list[Mapping[str, object]]()
    for row in rows:
        seen[row["label"]] += 1
        if seen[row["label"]] <= EXAMPLES_A_LABEL:
            few.append(row)
    ways = {"few": few, "many": rows[:MANY]}
    head = {"method": "head", "epochs": 30, "metric": "accuracy"}
    with tempfile.TemporaryDirectory() as place, Registry.open(place) as registry:
        for way, train in ways.items():
            parts = {"train": train, "dev": dev, "test": asked}
            outcome = run(f"{name.replace('_', '-')}-{way}", parts, head, registry, backbone)
            right = outcome.manifest.test_metrics[0].value
            unit = f"of {len(asked):,} test examples, a head on {len(train):,} examples"
            sheet.record(f"{PREFIX}.{way}.{name}.{key}", [right], unit=unit)


def record_set(
    name: str, folder: Path, key: str, backbone: Backbone, sheet: Sheet, rows: int, test: int
) -> Sequence[float]:
    """Record the figures of a set; return the loss of each temperature on train examples.

    `key` names the backbone in the figures.
    """
    listed, asked = read(folder, "train"), read(folder, "test")[:test]
    labels = sorted({str(it["label"]) for it in listed})
    options = NAMED.get(name) or {it.replace("_", " "): None for it in labels}
    question = TypedQuestion.model_validate({"type": "choice", "criteria": dict(options)})
    places = {it: place for place, it in enumerate(NAMED.get(name, labels))}
    outcomes = vectors(outcome_texts(question), backbone)

    def likeness_of(part: Sequence[Mapping[str, object]]) -> tuple[np.ndarray, np.ndarray]:
        truth = np.array([places[str(it["label"])] for it in part])
        return vectors([str(it["text"]) for it in part], backbone) @ outcomes.T, truth

    likeness, truth = likeness_of(listed[-rows:])
    losses = [loss(likeness, truth, it) for it in TEMPERATURES]
    likeness, truth = likeness_of(asked)
    served = ServerSettings().decisions_temperature
    way = f"{name}.{key}"
    right = float((likeness.argmax(axis=1) == truth).mean())
    unit = f"of {len(truth):,} test examples, {len(places)} options, no training"
    sheet.record(f"{PREFIX}.accuracy.{way}", [right], unit=unit)
    sure = shares(likeness, served).max(axis=1).mean()
    unit = f"mean probability of the likeliest option less the accuracy, temperature {served}"
    sheet.record(f"{PREFIX}.excess.{way}", [float(sure) - right], unit=unit)
    best = float(TEMPERATURES[int(np.argmin(losses))])
    unit = f"the temperature with the smallest loss on {rows} train examples"
    sheet.record(f"{PREFIX}.temperature.{way}", [best], unit=unit)
    return losses


def vectors(texts: Sequence[str], backbone: Backbone) -> np.ndarray:
    """Return the normalised vectors of texts, [texts, width]."""
    branch, found = embedding_branch(backbone), list[torch.Tensor]()
    limit = backbone.max_embedding_tokens
    for at in range(0, len(texts), AT_ONCE):
        encodings = backbone.tokenizer.encode(list(texts[at : at + AT_ONCE]), max_length=limit)
        with torch.inference_mode():
            found += forward(backbone, [Row(encoding=it, branch=branch) for it in encodings])
    stacked = torch.stack(found).double()
    return torch.nn.functional.normalize(stacked, dim=1).numpy()


def shares(likeness: np.ndarray, temperature: float) -> np.ndarray:
    """Return the probabilities of the options, [texts, options]."""
    found = np.exp((likeness - likeness.max(axis=1, keepdims=True)) / temperature)
    return found / found.sum(axis=1, keepdims=True)


def loss(likeness: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    """Return the mean negative log probability of the right options."""
    right = shares(likeness, temperature)[np.arange(len(truth)), truth]
    return float(-np.log(np.maximum(right, 1e-12)).mean())


if __name__ == "__main__":
    main()
