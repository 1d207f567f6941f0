"""Real data, end to end: train five tasks, publish, serve, and score the answers over HTTP.

`nunatak evaluate` asks one server about the dev examples of two tasks at a time, and the server
makes mixed batches of them. For each task the metric of the served answers must equal the metric in
its manifest.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.harness.recording import Sheet, figures_parser, hardware
from benchmarks.ready import nunatak
from demo.server_process import ServerProcess
from nunatak_contract.cards import markdown_table
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_contract.progress import shown_progress
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.kinds import Metric
from nunatak_training.report import Report
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainOutcome, TrainSettings, train

COLUMNS = ("set", "method", "train / dev", "metric", "manifest", "served", "goal", "training s")
PAGE = "real-data.md"


class RealTask(NamedTuple):
    """One data set, its recipe, and the score that it should reach."""

    name: str
    method: Method
    shown: str
    metric: Metric
    goal: str | None = None
    positive_label: str | None = None


LORA_8 = Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE)
TASKS = (
    RealTask("sst2", TopK(num_layers=2), "topk 2", Metric.ACCURACY, ">= 0.86"),
    RealTask("trec", LORA_8, "lora 8", Metric.ACCURACY, ">= 0.93"),
    RealTask("mrpc", Bottleneck(size=64), "bottleneck 64", Metric.F1, positive_label="equivalent"),
    RealTask("cola", HeadOnly(), "head", Metric.MATTHEWS_CORRELATION),
    RealTask("subj", TopK(num_layers=1), "topk 1", Metric.ACCURACY, ">= 0.93"),
)


def main() -> None:
    """Train, serve and score all tasks; exit 1 if a served metric differs from the recorded one."""
    parser = figures_parser(__doc__, data=True)
    parser.add_argument("--registry", type=Path, help="keep the trained tasks here")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        registry = arguments.registry or Path(scratch) / "registry"
        outcomes = train_all(registry, arguments.data)
        served = serve_all(registry, arguments.data)
    sheet = Sheet(command="make real", file=arguments.figures)
    for task in TASKS:
        name, unit = f"real.{task.name}.{task.shown.replace(' ', '')}", task.metric.value
        sheet.record(name, [served[task.name]], unit=unit, goal=task.goal)
    text = page(outcomes, served)
    arguments.figures.with_name(PAGE).write_text(text, encoding="utf-8")
    print(text)
    # Equal to four decimals, which the page shows.
    if any(round(served[it], 4) != round(recorded(outcomes[it]), 4) for it in served):
        raise SystemExit("a served metric differs from the recorded one")


def train_all(folder: Path, data: Path) -> dict[str, TrainOutcome]:
    backbone = load_backbone()
    with Registry.open(folder) as registry:
        return {it.name: train_one(it, registry, backbone, data / it.name) for it in TASKS}


def train_one(task: RealTask, registry: Registry, backbone: Backbone, data: Path) -> TrainOutcome:
    changes = {"metric": task.metric.value, "positive_label": task.positive_label}
    settings = TrainSettings(
        task=task.name, data=data, settings=RunSettings(method=task.method, changes=changes)
    )
    with shown_progress() as progress:
        report = Report(task.name, progress)
        return train(settings, registry=registry, backbone=backbone, report=report)


def serve_all(registry: Path, data: Path) -> dict[str, float]:
    """Score the answers of one server to two tasks at a time, about their dev examples."""
    log = registry / "server.log"
    with ServerProcess(registry, log=log) as server, ThreadPoolExecutor(2) as callers:

        def score(task: RealTask) -> float:
            examples = data / task.name / "dev.jsonl.gz"
            found = nunatak("evaluate", task.name, "--data", str(examples), "--server", server.url)
            # The command knows the F1 of each label, and no label that counts as positive.
            own = {it["label"]: it["f1"] for it in found["labels"]}
            is_f1 = task.metric is Metric.F1
            return own[task.positive_label] if is_f1 else found["metrics"][task.metric]

        return dict(zip((it.name for it in TASKS), callers.map(score, TASKS), strict=True))


def recorded(outcome: TrainOutcome) -> float:
    return outcome.manifest.metrics[0].value


def page(outcomes: Mapping[str, TrainOutcome], served: Mapping[str, float]) -> str:
    rows = (
        (
            task.name,
            task.shown,
            f"{data.num_train:,} / {data.num_dev:,}",
            task.metric.value,
            f"{recorded(outcomes[task.name]):.4f}",
            f"{served[task.name]:.4f}",
            task.goal or "",
            f"{outcomes[task.name].seconds:.0f}",
        )
        for task in TASKS
        if (data := outcomes[task.name].manifest.data) is not None
    )
    return (
        "# Real data, end to end\n\n"
        "Five data sets. Each set is trained on MiniLM by the default recipe of its method and\n"
        "published. One process serves all five tasks, and answers their whole dev sets over HTTP\n"
        "two tasks at a time. *Served* is the metric of these answers. It must equal\n"
        "*manifest*.\n\n"
        f"{markdown_table(COLUMNS, rows)}\n"
        "The head alone scores badly on CoLA, which agrees with the paper on frozen layers. The\n"
        "other sets need only a part of the layers. Scores come from the dev split, which also\n"
        "chose the epoch.\n\n"
        f"Command: `make real DATA=folder`; {hardware()}.\n"
    )


if __name__ == "__main__":
    main()
