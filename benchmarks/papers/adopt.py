"""Banking77 on full data."""

import argparse
import json
import time
from pathlib import Path

from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import HeadOnly, Lora, TopK
from nunatak_model import load_backbone
from nunatak_training.data import load_task_data
from nunatak_training.fitting import fit_task, evaluate
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.trunk import DiskTrunkStore

TRIES = {
    "minilm": [
        ("head", HeadOnly(), {"epochs": 30}),
        ("top-3", TopK(num_layers=3), {"epochs": 10}),
        (
            "lora-upper",
            Lora(rank=16, alpha=32.0, targets=tuple(LinearMap), first_layer=2),
            {"epochs": 10},
        ),
    ],
    "all-mpnet-base-v2": [
        ("head", HeadOnly(), {"epochs": 30}),
        ("top-2", TopK(num_layers=2), {"epochs": 5, "learning_rate": 1e-4}),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--results", type=Path, default=Path(".bench/adopt"))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    name = Path(options.backbone).name
    backbone = load_backbone(options.backbone)
    data = load_task_data(options.data / "banking77")
    trunks = DiskTrunkStore(options.results / "states")
    tries = TRIES[name]
    if name != "minilm":
        for part in (data.train, data.dev):
            enc = backbone.tokenizer.encode([it.model_input for it in part.examples], max_length=64)
            trunks.states(backbone, enc, depth=10, progress=lambda *_: None)
        print("states", flush=True)
    for label, method, changes in tries:
        file = options.results / f"banking77-{name}-{label}.json"
        if file.exists():
            continue
        started = time.perf_counter()
        recipe = default_recipe(
            method, backbone=backbone.name, changes={"max_length": 64, **changes}
        )
        trained = fit_task(data, recipe, backbone, report=Report(), trunks=trunks)
        test = evaluate(trained, data.test, backbone)
        seconds = time.perf_counter() - started
        row = {
            "name": label,
            "dev": next(iter(trained.scores.values())),
            "test": next(iter(test.values.values())),
            "seconds": seconds,
            "best": trained.best_epoch,
        }
        file.write_text(json.dumps(row))
        print(row, flush=True)


if __name__ == "__main__":
    main()
