"""One page on one real model: what N frozen layers save in a running server, and what they keep.

    python -m benchmarks.papers.elsa_page --data DATA --models MODELS

Memory is measured here (`elsa_memory`), and quality comes from the lines of the runs.
`python -m benchmarks.papers.render` writes the page again, from the lines that exist.
"""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.harness.plots import save_svg
from benchmarks.harness.recording import FIGURES, ROOT, Sheet, figures_parser
from benchmarks.harness.sets import input_of, read_part
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
from benchmarks.papers.elsa_plot import FLOAT32_BYTES, SHOWN_OWN, draw
from benchmarks.papers.elsa_table import (
    FAIR_STEPS,
    LEFT_OUT,
    ElsaTable,
    best_table,
    elsa_tables,
    named,
)
from benchmarks.papers.lines import LINES, read_lines
from nunatak_contract.cards import markdown_table

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
"""
TUNED = f"""- {BACKBONE} was tuned as a sentence encoder after pretraining, on pairs of NLI, Quora,
  Natural Questions and others, so it is no plain BERT or RoBERTa.
"""


def main() -> None:
    """Measure, and write the page."""
    parser = figures_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--models", type=Path, required=True, help="folder of backbones")
    parser.add_argument("--registry", type=Path, default=WORK / "registry")
    parser.add_argument("--lines", type=Path, default=LINES)
    options = parser.parse_args()
    publish_missing(options.data, options.models, options.registry)
    sheet = Sheet(command="make elsa", file=options.figures)
    first = {task: input_of(read_part(options.data / task, "dev")[0]) for task in TASKS}
    asked = {f"{task}-k{own}": first[task] for own in OWN for task in TASKS}
    memory = measure(options.models / BACKBONE, options.registry, asked, work=WORK, sheet=sheet)
    with (options.lines / f"{MEMORY}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(f"{memory.model_dump_json()}\n")
    record(memory, sheet)
    write_page(options.lines, PAGE)
    print(PAGE)


def write_page(lines: Path, page: Path) -> None:
    """Write the page and its picture from the lines that exist."""
    text, drawing = made(lines)
    save_svg(drawing, page.parent / "plots" / PLOT, salt="papers")
    page.write_text(text, encoding="utf-8")


def made(lines: Path) -> tuple[str, Figure]:
    """Return the page and its picture."""
    memory = read_memory(lines)
    table = best_table(elsa_tables(read_lines(lines / f"{SWEEP}.jsonl")))
    return page_text(memory, table), draw(memory, None if table is None else table[1])


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
            f"{memory.private[count] / 1e9:.2f} GB with all their pages in memory, or "
            f"{memory.mapped[count] / 1e9:.2f} GB mapped from files after one text each. Without "
            f"the runtime of both, this saves {memory.saved_private(own):.1%} or "
            f"{memory.saved_mapped(own):.1%}; the formula says {memory.formula(own):.1%}."
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
                f"The paper's shortest runs have {FAIR_STEPS} steps, so runs as short as these "
                "neither show nor refute its claim."
            )
    return " ".join(said) + "\n" if said else "Nothing is measured yet.\n"


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
    said = [NOTES.format(short=SHORT_EXAMPLES)]
    if memory is not None and memory.backbone == BACKBONE:
        said.append(TUNED)
    if table is not None:
        runs = table[1]
        at_chance = sorted(set(runs.tasks) - set(runs.learned))
        for said_of, tasks in (("missing", runs.unfinished), ("at chance", at_chance)):
            if tasks:
                said.append(f"- Sets with runs still {said_of}, in no mean: {named(tasks)}.\n")
    if memory is not None:
        said.append(f"- Memory: {memory.hardware}, {memory.date}.\n")
    return "".join(said)


if __name__ == "__main__":
    main()
