"""One page on one real model: what N frozen layers save in a running server, and what they keep.

    python -m benchmarks.papers.elsa_page --data DATA --models MODELS

Eight tasks with 0, 1, 3 and 6 own layers on all-mpnet-base-v2 are trained shortly if the registry
lacks them, published, loaded one by one and asked. The kernel's count of the process (PSS) stands
next to full copies and to the formula of Lee, Tang and Lin 2020, sec. 4.3. Quality comes from the
lines of the runs. `--render` only writes the page again, from the lines that exist.
"""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

import gzip
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from pydantic import BaseModel, ConfigDict

from benchmarks.harness.makers import LORA, export_full_model, plans
from benchmarks.harness.recording import FIGURES, ROOT, Sheet, figures_parser, hardware
from benchmarks.harness.shapes import Shape
from benchmarks.papers.elsa_table import LEFT_OUT, ElsaTable, elsa_tables
from benchmarks.papers.lines import LINES, read_lines
from benchmarks.papers.long_runs import HERE, PaperContext, publish_run, version_name
from benchmarks.savings.desk import SMOKE, Desk
from benchmarks.savings.footprint import WITHOUT_CACHE, pss_bytes, runtime_bytes
from benchmarks.savings.systems import Deployment, Started, System, running
from nunatak_client import Client
from nunatak_contract.cards import markdown_table
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import TopK
from nunatak_model import HeadSpec, ModelSize, load_backbone, model_size, parameters_saved
from nunatak_registry import Registry
from nunatak_training.sweeps import plan_runs, read_grid
from nunatak_training.sweeps.reporting import COLOURS, legend_below

Asked = str | tuple[str, str]
"""An input of a task: a text or a pair of texts."""
BACKBONE, SWEEP = "all-mpnet-base-v2", "elsa-mpnet"
OWN = (0, 1, 3, 6)
SHOWN_OWN = 3
"""The own layers of a fourth of the model, the paper's point."""
TASKS = ("sst2", "cola", "stsb", "mrpc", "rte", "qnli", "trec", "ag_news")
COPIES = (1, 2, 4, 8)
"""Numbers of full copies; the memory between them is a straight line."""
SETTLING_S = 10.0
FLOAT32_BYTES = 4
TOLERANCE = 0.02
"""Largest difference of the measured share from the formula."""
FAIR_STEPS = 467
"""Steps of the paper's shortest runs: RTE, 2,490 examples in batches of 16, 3 epochs."""
MEMORY = "elsa-memory"
WORK = ROOT / ".bench" / "elsa"
PAGE = FIGURES.parent / "elsa.md"
PLOT = "elsa.svg"
PAPER = {6: 0.9845, 7: 0.9737, 8: 0.9612, 9: 0.9545, 10: 0.937, 11: 0.9007, 12: 0.5903}
"""Quality kept by RoBERTa base with N layers frozen (Lee, Tang and Lin 2020, A.3)."""
HEAD = f"""# Freezing layers on one real model: memory and quality

`make elsa DATA=folder MODELS=folder` measures this page again. The runs behind the quality are
lines in `docs/results/papers`, which grow. The claims of the paper: [papers.md](papers.md).

![Memory over tasks, and quality kept over memory saved](plots/{PLOT})
"""
NOTES = """- **Formula**: Lee, Tang and Lin 2020, sec. 4.3, from the shapes of the modules. The
  server's ledger adds the same parameters, so it equals the formula by construction. Only the
  columns with PSS are measured.
- **PSS** is the kernel's count for the process, with the pages of libraries counted whole, less the
  same count of the same system almost without weights. Private copies have all their pages in
  memory, as after some traffic. Mapped copies have answered one text each, so most of their
  embeddings are not read yet. A copy has transformers' head, which makes it 0.5 % larger than the
  formula's model.
- The served versions are those that the runs have published; the others are trained on 200
  examples, because their memory is the same.
- The server holds the layers that its tasks read (`--backbone-layers`), and no trunk cache. Each
  load compares the version's probe with the answers of training.
- **Quality** is the score of the last epoch over that of full fine-tuning, as the mean of the tasks
  whose full fine-tuning beats the best constant answer by three deviations. Intervals are Student's
  at 95 %, over seeds.
- all-mpnet-base-v2 was tuned as a sentence encoder after pretraining, on pairs of NLI, Quora,
  Natural Questions and others, so it is no plain BERT or RoBERTa. The grey curve is the paper's
  RoBERTa base, trained on whole sets.
"""
mpl.rcParams |= {"svg.hashsalt": "papers", "svg.fonttype": "none"}


class Memory(BaseModel):
    """One measurement: a line in docs/results/papers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    embedding: float
    per_layer: float
    output: float
    """Mean parameters of a head."""
    num_layers: int
    ours: dict[int, list[int]]
    """PSS in bytes with 1, 2, 3, ... tasks, by own layers."""
    private: dict[int, int]
    mapped: dict[int, int]
    """PSS of full copies by their number: with pages of their own, and mapped from files."""
    runtime: dict[str, int]
    """PSS of each system almost without weights."""
    ledger: dict[int, float]
    """The saved share by the server's own count of parameters, by own layers."""
    hardware: str
    date: str

    @property
    def size(self) -> ModelSize:
        """The parts of one full model."""
        return ModelSize(
            embedding=self.embedding,
            per_layer=self.per_layer,
            output=self.output,
            num_layers=self.num_layers,
        )

    @property
    def num_tasks(self) -> int:
        """The largest number of tasks."""
        return max(self.private)

    def formula(self, own: int) -> float:
        """The share that the paper's formula saves at the largest number of tasks."""
        frozen = self.num_layers - own
        return parameters_saved(self.size, num_tasks=self.num_tasks, num_frozen=frozen)

    def saved(self, own: int, copies: Mapping[int, int], system: System) -> float:
        """The measured share: growth of our server over growth of full copies."""
        ours = self.ours[own][self.num_tasks - 1] - self.runtime[System.NUNATAK]
        return 1 - ours / (copies[self.num_tasks] - self.runtime[system])

    def saved_private(self, own: int) -> float:
        """The share saved, compared with copies whose pages are all in memory."""
        return self.saved(own, self.private, System.FULL_MODELS_PRIVATE)

    def saved_mapped(self, own: int) -> float:
        """The share saved, compared with mapped copies that have answered one text."""
        return self.saved(own, self.mapped, System.FULL_MODELS)


def main() -> None:
    """Measure if asked to, and write the page."""
    parser = figures_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with one folder per set")
    parser.add_argument("--models", type=Path, help="folder of backbones")
    parser.add_argument("--registry", type=Path, default=WORK / "registry")
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--render", action="store_true", help="write the page again, and no more")
    options = parser.parse_args()
    if not options.render:
        publish_missing(options.data, options.models, options.registry)
        sheet = Sheet(command="make elsa", file=options.figures, rounds=1)
        asked = {
            f"{task}-k{own}": first_input(options.data / task) for own in OWN for task in TASKS
        }
        memory = measure(options.models / BACKBONE, options.registry, asked, work=WORK, sheet=sheet)
        with (options.lines / f"{MEMORY}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(f"{memory.model_dump_json()}\n")
        record(memory, sheet)
    write_page(options.lines, PAGE)
    print(PAGE)


def record(memory: Memory, sheet: Sheet) -> None:
    """Record the shares at every depth."""
    for own in memory.ours:
        name = f"paper.elsa.mpnet.saved.n{memory.num_layers - own}"
        formula, unit = memory.formula(own), f"of {memory.num_tasks} full models"
        measured = f"{unit} (PSS); formula {formula:.3f}"
        goal = f">= {formula - TOLERANCE:.3f}"
        sheet.record(f"{name}.pss", [memory.saved_private(own)], unit=measured, goal=goal)
        mapped = f"{unit}, mapped, of which each has answered one text (PSS)"
        sheet.record(f"{name}.pss_mapped", [memory.saved_mapped(own)], unit=mapped)


def publish_missing(data: Path, models: Path, registry: Path) -> None:
    """Publish the versions that the registry lacks, after a short training."""
    tasks = [{"name": task, **KINDS.get(task, {})} for task in TASKS]
    methods = [{"kind": "topk", "frozen": [6, 9, 11]}, {"kind": "head"}]
    changes = {"tasks": tasks, "methods": methods, "seeds": [0], "data_root": str(data)}
    grid = read_grid(HERE / f"{SWEEP}.yaml", {**changes, **SHORT})
    with Registry.open(registry) as opened:
        known = {summary.name for summary in opened.tasks()}
    context = PaperContext(models, 0, checkpoints=None)
    for run in plan_runs(grid, backbone_of=context.backbone, data_of=context.data):
        name = version_name(run)
        if name is not None and name not in known:
            publish_run(run, context.fit(run), context, registry)
            print(f"trained {name}", flush=True)


SHORT: Mapping[str, object] = {"train_caps": [200], "dev_cap": 200, "overrides.epochs": 1}
"""The training of a version that no run of the plan has published: memory needs no quality."""
KINDS: Mapping[str, Mapping[str, object]] = {
    "cola": {"recipe": {"metric": "matthews_correlation"}},
    "stsb": {"kind": "regression"},
    "mrpc": {"recipe": {"metric": "f1", "positive_label": "equivalent"}},
}


def first_input(folder: Path) -> Asked:
    """Return the first dev text of a set, or pair of texts."""
    with gzip.open(folder / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        row = json.loads(next(lines))
    return (row["text"], row["text_pair"]) if row.get("text_pair") else row["text"]


def measure(
    backbone: Path,
    registry: Path,
    asked: Mapping[str, Asked],
    *,
    work: Path,
    sheet: Sheet,
    copied: Sequence[int] = COPIES,
    settling_s: float = SETTLING_S,
) -> Memory:
    """Measure a server that loads the tasks of each number of own layers, and full copies.

    Args:
        backbone: its folder.
        registry: holds the tasks `NAME-kN`, N being the number of own layers.
        asked: an input for each of these tasks, in the order of loading.
        work: folder of full copies, made on demand.
        sheet: of the benchmark's figures.
        copied: numbers of full copies; the number of tasks is always one of them.
        settling_s: seconds between the last answer and a measurement.
    """
    desk = Desk(work=work, sheet=sheet, extent=SMOKE, cores=None)
    tiny = plans(1, (LORA,))
    nothing = desk.deployment(Shape.TINY, "runtime", tiny, options=WITHOUT_CACHE, full_models=tiny)
    systems = (System.NUNATAK, System.FULL_MODELS_PRIVATE, System.FULL_MODELS)
    runtime = {
        str(it): runtime_bytes(it, nothing, settling_s=settling_s, count_of=Started.alone)
        for it in systems
    }
    loaded = load_backbone(backbone)
    with Registry.open(registry) as opened:
        heads = [it.manifest.parameter_counts.head for it in opened.tasks() if it.name in asked]
    fitting = HeadSpec(num_labels=2, pooling=Pooling.MEAN)
    size = replace(model_size(loaded.config, fitting), output=mean(heads))
    by_own = defaultdict[int, dict[str, Asked]](dict)
    for name, text in asked.items():
        by_own[own_layers(name)][name] = text
    count = min(map(len, by_own.values()))
    ours, ledger = dict[int, list[int]](), dict[int, float]()
    for own, inputs in sorted(by_own.items()):
        ours[own], ledger[own] = served(
            backbone, registry, inputs, frozen=size.num_layers - own, settling_s=settling_s
        )
    copies = plans(count, (TopK(num_layers=1),), prefix="copy")
    for plan in copies:
        export_full_model(plan, loaded, work)
    apart = Deployment(
        backbone=backbone,
        registry=registry,
        tasks=tuple(plan.name for plan in copies),
        folder=work,
        cores=None,
        log=work / "copies.log",
    )
    counts = sorted({it for it in copied if it < count} | {count})
    private, mapped = (
        dict(
            zip(
                counts,
                pss_bytes(it, apart, counts, settling_s=settling_s, count_of=Started.alone),
                strict=True,
            )
        )
        for it in systems[1:]
    )
    return Memory(
        backbone=loaded.name,
        embedding=size.embedding,
        per_layer=size.per_layer,
        output=size.output,
        num_layers=size.num_layers,
        ours=ours,
        private=private,
        mapped=mapped,
        runtime=runtime,
        ledger=ledger,
        hardware=hardware(),
        date=datetime.now(UTC).date().isoformat(),
    )


def own_layers(version: str) -> int:
    """Return the number of own layers in the name of a version, `TASK-kN`."""
    return int(version.rpartition("-k")[2])


def served(
    backbone: Path,
    registry: Path,
    inputs: Mapping[str, Asked],
    *,
    frozen: int,
    settling_s: float,
) -> tuple[list[int], float]:
    """Load and ask one task after another; return the PSS after each, and the ledger's share.

    Every load compares the answers to the version's probe with those of training.
    """
    deployment = Deployment(
        backbone=backbone,
        registry=registry,
        tasks=tuple(inputs),
        folder=registry,
        cores=None,
        log=registry / "server.log",
        options=(*WITHOUT_CACHE, "--backbone-layers", str(frozen)),
    )
    found = list[int]()
    with running(System.NUNATAK, deployment) as started:
        (address,) = set(started.addresses.values())
        with Client(address) as client:
            for task, text in inputs.items():
                client.preload(task)
                client.predict(task, text)
                # Memory freed by a load returns to the system some seconds later.
                time.sleep(settling_s)
                found.append(started.alone())
            return found, client.memory().saved_share


def write_page(lines: Path, page: Path) -> None:
    """Write the page and its picture from the lines that exist."""
    file = lines / f"{MEMORY}.jsonl"
    measured = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    memory = Memory.model_validate_json(measured[-1]) if measured else None
    table = best_table(elsa_tables(read_lines(lines / f"{SWEEP}.jsonl")))
    plots = page.parent / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    drawing = draw(memory, None if table is None else table[1])
    drawing.savefig(plots / PLOT, metadata={"Date": None})
    page.write_text(page_text(memory, table), encoding="utf-8")


def best_table(tables: Mapping[str, ElsaTable]) -> tuple[str, ElsaTable] | None:
    """Return the setting with the most tasks above chance, then the most steps; None: no runs."""
    ranked = sorted(tables.items(), key=lambda it: (len(it[1].learned), it[1].num_steps))
    return ranked[-1] if ranked and ranked[-1][1].learned else None


def page_text(memory: Memory | None, table: tuple[str, ElsaTable] | None) -> str:
    """Return the page: the picture, one table, and what the numbers are."""
    parts = (summary(memory, table), rows_of(memory, table), notes(memory, table))
    return "\n".join((HEAD, *(part for part in parts if part)))


def summary(memory: Memory | None, table: tuple[str, ElsaTable] | None) -> str:
    """Return one sentence with the numbers at three own layers; each part only if measured."""
    own, said = SHOWN_OWN, list[str]()
    if memory is not None and own in memory.ours:
        count = memory.num_tasks
        said.append(
            f"{count} tasks with {own} own layers each on {memory.backbone} take "
            f"{memory.ours[own][count - 1] / 1e9:.2f} GB in one process, and {count} full copies "
            f"{memory.private[count] / 1e9:.2f} GB. Without the runtime of both, this saves "
            f"{memory.saved_private(own):.1%}; the formula says {memory.formula(own):.1%}."
        )
    if table is not None and (frozen := table[1].num_layers - own) in table[1].depths:
        kept = table[1].average(frozen)
        said.append(
            f"At this depth {kept.text('{:.1%}')} of the quality of full fine-tuning remains, as "
            f"the mean of {named(table[1].learned)} ({table[0]}, {table[1].num_steps} steps)."
        )
        if LEFT_OUT in table[1].learned and len(table[1].learned) > 1:
            others = table[1].average(frozen, without=LEFT_OUT)
            share = others.text("{:.1%}")
            said.append(f"Without {LEFT_OUT}, which its first version sets aside, it is {share}.")
        if table[1].num_steps < FAIR_STEPS:
            said.append(
                f"The paper's shortest runs have {FAIR_STEPS} steps, so runs as short as these can "
                "show its claim and cannot refute it."
            )
    return " ".join(said) + "\n" if said else "Nothing is measured yet.\n"


def named(tasks: Sequence[str]) -> str:
    """Return names in a sentence."""
    return tasks[0] if len(tasks) == 1 else f"{', '.join(tasks[:-1])} and {tasks[-1]}"


def rows_of(memory: Memory | None, table: tuple[str, ElsaTable] | None) -> str:
    """Return the table with a row for each number of frozen layers that has a number."""
    if memory is None and table is None:
        return ""
    num_layers = table[1].num_layers if table is not None else memory.num_layers if memory else 0
    depths = set(table[1].depths if table else ())
    depths |= {num_layers - own for own in (memory.ours if memory else ())}
    rows = list[list[str]]()
    for frozen in sorted(depths):
        own = num_layers - frozen
        rows.append([str(frozen), *memory_cells(memory, own), *quality_cells(table, frozen)])
    header = ("frozen layers", "own MB a task", "saved: formula", "ledger", "PSS, private copies")
    quality = ("PSS, mapped copies", "quality kept", f"without {LEFT_OUT}")
    return markdown_table((*header, *quality), rows)


def quality_cells(table: tuple[str, ElsaTable] | None, frozen: int) -> list[str]:
    """Return the cells of a row about quality; empty where nothing has run."""
    if table is None or frozen not in table[1].depths:
        return ["", ""]
    has_others = bool(set(table[1].learned) - {LEFT_OUT})
    kept = [table[1].average(frozen).text("{:.1%}")]
    if has_others:
        kept.append(table[1].average(frozen, without=LEFT_OUT).text("{:.1%}"))
    return kept + [""] * (2 - len(kept))


def memory_cells(memory: Memory | None, own: int) -> list[str]:
    """Return the cells of a row about memory; empty where nothing is measured."""
    if memory is None:
        return [""] * 5
    size = FLOAT32_BYTES * (own * memory.per_layer + memory.output) / 1e6
    shares = [memory.formula(own)]
    if own in memory.ours:
        shares += [memory.ledger[own], memory.saved_private(own), memory.saved_mapped(own)]
    cells = [f"{size:.1f}", *(f"{share:.1%}" for share in shares)]
    return cells + [""] * (5 - len(cells))


def notes(memory: Memory | None, table: tuple[str, ElsaTable] | None) -> str:
    """Return what the columns are, and what is missing."""
    said = [NOTES]
    if table is not None and table[1].unfinished:
        said.append(f"- Runs still missing: {named(table[1].unfinished)}.\n")
    if memory is not None:
        said.append(f"- Memory: {memory.hardware}, {memory.date}.\n")
    return "".join(said)


def draw(memory: Memory | None, table: ElsaTable | None) -> Figure:
    """Draw memory over tasks, and quality over memory; the colour of k is the same in both."""
    drawing = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
    if memory is not None:
        draw_memory(left, memory)
    draw_quality(right, memory, table)
    legend_below(drawing, [left, right])
    return drawing


def draw_memory(axes: Axes, memory: Memory) -> None:
    """Draw the measured PSS as points and the formula as lines, over the number of tasks."""
    size, count = memory.size, memory.num_tasks
    floor = memory.runtime[System.NUNATAK]
    axes.axhspan(0, floor / 1e9, color="#e8e8e8", label="runtime without weights")
    tasks = range(1, count + 1)
    for own, colour in zip(sorted(memory.ours), COLOURS, strict=False):
        shared = size.embedding + (size.num_layers - own) * size.per_layer
        each = own * size.per_layer + size.output
        predicted = [(floor + FLOAT32_BYTES * (shared + it * each)) / 1e9 for it in tasks]
        axes.plot(tasks, predicted, ls="--", lw=1, color=colour)
        measured = [it / 1e9 for it in memory.ours[own]]
        axes.plot(tasks, measured, ls="", marker="o", ms=5, color=colour, label=f"{own} own layers")
    for copies, system, mark, label in (
        (memory.private, System.FULL_MODELS_PRIVATE, "s", "full copies, private pages"),
        (memory.mapped, System.FULL_MODELS, "^", "full copies, mapped, one text each"),
    ):
        base = memory.runtime[system]
        if system is System.FULL_MODELS_PRIVATE:
            predicted = [(base + FLOAT32_BYTES * it * size.total) / 1e9 for it in tasks]
            axes.plot(tasks, predicted, ls="--", lw=1, color="black", label="formula")
        values = [it / 1e9 for it in copies.values()]
        axes.plot(list(copies), values, ls="", marker=mark, ms=6, color="black", label=label)
    draw_gap(axes, memory)
    axes.set(xlabel="tasks in memory", ylabel="GB of the process (PSS)", xlim=(0.5, count + 0.5))
    axes.set_ylim(bottom=0)


def draw_gap(axes: Axes, memory: Memory) -> None:
    """Draw the arrow from full copies down to the tasks with the shown number of own layers."""
    if SHOWN_OWN not in memory.ours:
        return
    count = memory.num_tasks
    ours, copies = memory.ours[SHOWN_OWN][count - 1] / 1e9, memory.private[count] / 1e9
    axes.annotate("", (count, ours), xytext=(count, copies), arrowprops={"arrowstyle": "->"})
    share, formula = memory.saved_private(SHOWN_OWN), memory.formula(SHOWN_OWN)
    said = f"saved {share:.1%}\n(formula {formula:.1%})"
    axes.annotate(said, (count - 0.15, (ours + copies) / 2), ha="right", va="center")


def draw_quality(axes: Axes, memory: Memory | None, table: ElsaTable | None) -> None:
    """Draw quality kept over the share saved, with the paper's curve behind."""
    size = memory.size if memory else None
    num_tasks = memory.num_tasks if memory else len(TASKS)

    def place(frozen: int) -> float:
        return (
            frozen
            if size is None
            else parameters_saved(size, num_tasks=num_tasks, num_frozen=frozen)
        )

    axes.plot(
        [place(it) for it in PAPER], list(PAPER.values()), color="#8a8f96", lw=1.2, marker=".",
        label="the paper's RoBERTa base",
    )  # fmt: skip
    colours = dict[int, str](zip(sorted(OWN), COLOURS, strict=False))
    if table is not None:
        for frozen in table.depths:
            draw_point(axes, table, frozen, memory, place(frozen), colours)
    axes.axhline(0.95, ls=":", lw=1, color="black")
    axes.set(
        xlabel=f"saved with {num_tasks} tasks" if size else "frozen layers",
        ylabel="quality of full fine-tuning kept",
    )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if size is not None:
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def draw_point(
    axes: Axes,
    table: ElsaTable,
    frozen: int,
    memory: Memory | None,
    predicted: float,
    colours: Mapping[int, str],
) -> None:
    """Draw the quality at one depth, over the measured share, or over the formula's."""
    kept, own = table.average(frozen), table.num_layers - frozen
    is_measured = memory is not None and own in memory.ours
    across = memory.saved_private(own) if memory is not None and is_measured else predicted
    low, high = kept.low, kept.high
    bars = None if low is None or high is None else [[kept.mean - low], [high - kept.mean]]
    colour = colours.get(own, "black")
    axes.errorbar([across], [kept.mean], yerr=bars, fmt="o", ms=6, capsize=3, color=colour)
    if LEFT_OUT in table.learned and len(table.learned) > 1:
        others = table.average(frozen, without=LEFT_OUT).mean
        label = f"without {LEFT_OUT}" if frozen == table.depths[0] else None
        axes.plot(
            [across], [others], marker="o", ms=6, mfc="none", ls="", color=colour, label=label
        )
    where = (across, kept.mean)
    axes.annotate(f"N = {frozen}", where, xytext=(5, 5), textcoords="offset points")


if __name__ == "__main__":
    main()
