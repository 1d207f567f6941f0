"""One page on one real model: what N frozen layers save in a running server, and what they keep.

    python -m benchmarks.papers.elsa_page --data DATA --models MODELS

Memory is measured here (`elsa_memory`), and quality comes from the lines of the runs.
`python -m benchmarks.papers.render` writes the page again, from the lines that exist.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.harness.plots import save_svg
from benchmarks.harness.recording import FIGURES, ROOT, Sheet, existing, figures_parser
from benchmarks.papers.elsa_memory import (
    BACKBONE,
    MEMORY,
    OWN,
    SHORT_EXAMPLES,
    SWEEP,
    TASKS,
    Memory,
    measure,
    publish_missing,
    read_memory,
    record,
)
from benchmarks.papers.elsa_table import LEFT_OUT, ElsaTable, best_table, elsa_tables, named
from benchmarks.papers.lines import LINES, read_lines
from benchmarks.savings.systems import System
from nunatak_contract.cards import markdown_table
from nunatak_model import parameters_saved
from nunatak_training.sweeps.reporting import COLOURS, legend_below

SHOWN_OWN = 3
"""The own layers of a fourth of the model, the paper's point."""
FLOAT32_BYTES = 4
PAPER = {6: 0.9845, 7: 0.9737, 8: 0.9612, 9: 0.9545, 10: 0.937, 11: 0.9007, 12: 0.5903}
"""Quality kept by RoBERTa base with N layers frozen (Lee, Tang and Lin 2020, A.3)."""
WORK = ROOT / ".bench" / "elsa"
PAGE = FIGURES.parent / "elsa.md"
PLOT = "elsa.svg"
HEAD = f"""# Freezing layers on one real model: memory and quality

`make elsa DATA=folder MODELS=folder` measures this page again. The runs behind the quality are
lines in `docs/results/papers`, and `make papers` adds lines. The claims of the paper:
[papers.md](papers.md).

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
- The served versions are those that the runs had published. Those that the registry lacked are
  trained on {short} examples, because their memory is the same.
- The server holds the layers that its tasks read (`--backbone-layers`), and no trunk cache. Each
  load compares the version's probe with the answers of training.
- **Quality** is the score of the last epoch over that of full fine-tuning, as the mean of the tasks
  whose full fine-tuning beats the best constant answer by three deviations. Intervals are Student's
  at 95 %, over seeds.
- The grey curve is the paper's RoBERTa base, trained on whole sets.
- {backbone} was tuned as a sentence encoder after pretraining, on pairs of NLI, Quora,
  Natural Questions and others, so it is no plain BERT or RoBERTa.
"""


def main() -> None:
    parser = figures_parser(__doc__, data=True)
    parser.add_argument("--models", type=existing, required=True, help="folder of backbones")
    parser.add_argument("--registry", type=Path, default=WORK / "registry")
    parser.add_argument("--lines", type=existing, default=LINES)
    options = parser.parse_args()
    publish_missing(options.data, options.models, options.registry)
    sheet = Sheet(command="make elsa", file=options.figures)
    names = [f"{task}-k{own}" for own in OWN for task in TASKS]
    memory = measure(options.models / BACKBONE, options.registry, names, work=WORK)
    with (options.lines / f"{MEMORY}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(f"{memory.model_dump_json()}\n")
    record(memory, sheet)
    page = options.figures.with_name(PAGE.name)
    write_page(options.lines, page)
    print(page)


def write_page(lines: Path, page: Path) -> None:
    text, drawing = made(lines)
    save_svg(drawing, page.parent / "plots" / PLOT, salt="papers")
    page.write_text(text, encoding="utf-8")


def made(lines: Path) -> tuple[str, Figure]:
    memory = read_memory(lines)
    best = best_table(elsa_tables(read_lines(lines / f"{SWEEP}.jsonl")))
    if best is None:
        raise ValueError(f"{lines} has no run of {SWEEP} above chance")
    setting, table = best
    parts = (HEAD, summary(memory, setting, table), rows_of(memory, table), notes(memory, table))
    return "\n".join(parts), draw(memory, table)


def summary(memory: Memory, setting: str, table: ElsaTable) -> str:
    """Return one paragraph with the numbers at three own layers."""
    own, count = SHOWN_OWN, memory.num_tasks
    kept, others = quality_cells(table, table.num_layers - own)
    return (
        f"{count} tasks with {own} own layers each on {memory.backbone} take "
        f"{memory.ours[own][count - 1] / 1e9:.2f} GB in one process, and {count} full copies "
        f"{memory.private[count] / 1e9:.2f} GB with all their pages in memory, or "
        f"{memory.mapped[count] / 1e9:.2f} GB mapped from files after one text each. Without "
        f"the runtime of both, this saves {memory.saved_private(own):.1%} or "
        f"{memory.saved_mapped(own):.1%}; the formula says {memory.formula(own):.1%}. "
        f"At this depth {kept} of the quality of full fine-tuning remains, as "
        f"the mean of {named(table.learned)} ({setting}, {table.num_steps} steps). "
        f"Without {LEFT_OUT}, which its first version sets aside, it is {others}.\n"
    )


def rows_of(memory: Memory, table: ElsaTable) -> str:
    """Return the table with a row for each number of frozen layers."""
    rows = [
        [
            str(frozen),
            *memory_cells(memory, table.num_layers - frozen),
            *quality_cells(table, frozen),
        ]
        for frozen in table.depths
    ]
    header = ("frozen layers", "own MB a task", "saved: formula", "ledger", "PSS, private copies")
    quality = ("PSS, mapped copies", "quality kept", f"without {LEFT_OUT}")
    return markdown_table((*header, *quality), rows)


def quality_cells(table: ElsaTable, frozen: int) -> list[str]:
    return [table.average(frozen, without=it).text("{:.1%}") for it in (None, LEFT_OUT)]


def memory_cells(memory: Memory, own: int) -> list[str]:
    """Return the size of a task, and the saved shares in all counts."""
    size = FLOAT32_BYTES * (own * memory.per_layer + memory.output) / 1e6
    shares = (memory.formula(own), memory.ledger[own])
    measured = (memory.saved_private(own), memory.saved_mapped(own))
    return [f"{size:.1f}", *(f"{share:.1%}" for share in (*shares, *measured))]


def notes(memory: Memory, table: ElsaTable) -> str:
    said = [NOTES.format(short=SHORT_EXAMPLES, backbone=BACKBONE)]
    at_chance = sorted(set(table.tasks) - set(table.learned))
    for said_of, tasks in (("missing", table.unfinished), ("at chance", at_chance)):
        if tasks:
            said.append(f"- Sets with runs still {said_of}, in no mean: {named(tasks)}.\n")
    return "".join((*said, f"- Memory: {memory.hardware}, {memory.date}.\n"))


def draw(memory: Memory, table: ElsaTable) -> Figure:
    """Draw memory over tasks, and quality over memory; the colour of k is the same in both."""
    drawing = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
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
    share, formula = memory.saved_private(SHOWN_OWN), memory.formula(SHOWN_OWN)
    said = f"saved {share:.1%}\n(formula {formula:.1%})"
    shown, whole = memory.ours[SHOWN_OWN][count - 1] / 1e9, memory.private[count] / 1e9
    axes.annotate("", (count, shown), xytext=(count, whole), arrowprops={"arrowstyle": "->"})
    axes.annotate(said, (count - 0.15, (shown + whole) / 2), ha="right", va="center")
    axes.set(xlabel="tasks in memory", ylabel="GB of the process (PSS)", xlim=(0.5, count + 0.5))
    axes.set_ylim(bottom=0)


def draw_quality(axes: Axes, memory: Memory, table: ElsaTable) -> None:
    """Draw quality kept over the measured share, with the paper's curve behind."""
    num_tasks = memory.num_tasks
    formula = [parameters_saved(memory.size, num_tasks=num_tasks, num_frozen=it) for it in PAPER]
    axes.plot(
        formula, list(PAPER.values()), color="#8a8f96", lw=1.2, marker=".",
        label="the paper's RoBERTa base",
    )  # fmt: skip
    colours = dict[int, str](zip(sorted(OWN), COLOURS, strict=False))
    for frozen in table.depths:
        draw_point(axes, table, frozen, memory, colours)
    axes.axhline(0.95, ls=":", lw=1, color="black")
    axes.set(xlabel=f"saved with {num_tasks} tasks", ylabel="quality of full fine-tuning kept")
    for axis in (axes.yaxis, axes.xaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def draw_point(
    axes: Axes, table: ElsaTable, frozen: int, memory: Memory, colours: Mapping[int, str]
) -> None:
    kept, own = table.average(frozen), table.num_layers - frozen
    across, low, high = memory.saved_private(own), kept.low, kept.high
    bars = None if low is None or high is None else [[kept.mean - low], [high - kept.mean]]
    colour = colours[own]
    axes.errorbar([across], [kept.mean], yerr=bars, fmt="o", ms=6, capsize=3, color=colour)
    others = table.average(frozen, without=LEFT_OUT).mean
    label = f"without {LEFT_OUT}" if frozen == table.depths[0] else None
    axes.plot([across], [others], marker="o", ms=6, mfc="none", ls="", color=colour, label=label)
    where = (across, kept.mean)
    axes.annotate(f"N = {frozen}", where, xytext=(5, 5), textcoords="offset points")


if __name__ == "__main__":
    main()
