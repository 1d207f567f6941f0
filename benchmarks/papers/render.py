"""The pages of the papers, only from the lines of runs: `papers.md` and `elsa.md` in docs/results.

The program can run at any time. A part without lines says so.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.harness.plots import save_svg
from benchmarks.harness.recording import FIGURES, Sheet, existing, latest, rounded
from benchmarks.papers import elsa_page
from benchmarks.papers.claims import Estimate, Verdict, estimate, read_claims
from benchmarks.papers.elsa_memory import read_memory
from benchmarks.papers.elsa_table import best_table, draw_relative, elsa_tables, named, spread
from benchmarks.papers.figures import (
    SENTENCES,
    SFT,
    Lines,
    all_figures,
    best_runs,
    method_of,
    read_all,
    transferred,
)
from benchmarks.papers.lines import LINES, PaperRun
from benchmarks.papers.sweep_findings import analyze_lowresource, analyze_robustness
from nunatak_contract.cards import markdown_table
from nunatak_training.recipes import Schedule
from nunatak_training.sweeps.reporting import (
    TASK,
    Cell,
    cells_markdown,
    cells_of,
    legend_below,
    mean_curve,
    panels_by_task,
    regularizer_label,
    whole_numbers,
)
from nunatak_training.sweeps.results import RunRecord


def variant_of(cell: Cell) -> str:
    """The regularizer, and the schedule if the learning rate does not fall."""
    is_constant = cell.runs[0].recipe.schedule is Schedule.CONSTANT
    return cell.columns["regularizer"] + (", constant rate" if is_constant else "")


def undrawn(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs without what tells draws of examples apart: a seed of the plan draws them."""
    same = {"train_digest": "", "dev_digest": ""}
    return [
        it.model_copy(
            update={"run": it.run.model_copy(update={"data": it.run.data.model_copy(update=same)})}
        )
        for it in records
    ]


def graddrop_cells(records: Sequence[RunRecord]) -> list[Cell]:
    """Return the settings with scores of the seeds that a task has in all, the standard first."""
    seeds, whole = dict[str, set[int]](), list[Cell]()
    cells = [cell for cell in cells_of(undrawn(records)) if cell.scores]
    for cell in cells:
        own = {it.recipe.seed for it in cell.runs}
        seeds[cell.columns[TASK]] = seeds.get(cell.columns[TASK], own) & own
    for cell in cells:
        pairs = zip(cell.runs, cell.outcomes, strict=True)
        kept = [it for it in pairs if it[0].recipe.seed in seeds[cell.columns[TASK]]]
        if kept:
            runs, outcomes = zip(*kept, strict=True)
            whole.append(replace(cell, runs=runs, outcomes=outcomes))
    return sorted(whole, key=lambda cell: (variant_of(cell) != SFT, variant_of(cell)))


def graddrop_markdown(cells: Sequence[Cell]) -> str:
    """Return a row per variant: mean and deviation per task, and the average next to SFT's.

    The average is over the tasks that all variants have.
    """
    by_key = {(variant_of(cell), cell.columns[TASK]): cell for cell in cells}
    tasks = sorted({task for _, task in by_key})
    variants = list(dict.fromkeys(variant for variant, _ in by_key))
    whole = [task for task in tasks if all((it, task) in by_key for it in variants)]
    averages = {it: average(by_key, it, whole) if whole else 0.0 for it in variants}
    rows = [
        [
            "SFT" if variant == SFT else variant,
            *(_spread(by_key, variant, task) for task in tasks),
            f"{averages[variant]:.4f}" if whole else "",
        ]
        for variant in sorted(variants, key=lambda it: -averages[it])
    ]
    return markdown_table(
        ["variant", *tasks, f"average of {named(whole)}" if whole else "average"], rows
    )


def average(cells: dict[tuple[str, str], Cell], variant: str, tasks: Sequence[str]) -> float:
    return mean(mean(cells[variant, task].scores) for task in tasks)


def draw_curves(cells: Sequence[Cell]) -> Figure:
    """Draw dev score over epochs, one panel per task, with standard fine-tuning in black."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        for cell in members:
            points = mean_curve(cell)
            is_sft = variant_of(cell) == SFT
            (line,) = axes.plot(
                [epoch for epoch, _ in points],
                [score for _, score in points],
                label="SFT" if is_sft else variant_of(cell),
                lw=2.5 if is_sft else 1.2,
                ms=5,
            )
            if is_sft:
                line.set_color("black")
        whole_numbers(axes)
        axes.set(title=task, xlabel="epoch", ylabel="dev score")
    legend_below(drawing, [axes for axes, _ in panels])
    return drawing


def _spread(cells: dict[tuple[str, str], Cell], variant: str, task: str) -> str:
    return spread(cells[variant, task].scores) if (variant, task) in cells else ""


PAGE = FIGURES.parent / "papers.md"
HEAD = """# The papers' tables

What four papers claim about frozen layers, adapters and dropped gradients, and what the runs say.
{counts}

`make papers DATA=folder MODELS=folder` does the runs that are missing and writes this page.
Each run is one line in `docs/results/papers` and is never run again, so the tables grow. Memory and
quality of frozen layers on one model: [elsa.md](elsa.md). The first, short runs:
[papers-short.md](papers-short.md).

## The claims

A verdict with a bold number follows from lines; the others are a person's, with the reason. A claim
*holds* if the whole interval keeps its bound, *fails* if none of it does, and is *not shown* if
neither is so, if there is one seed, or if all seeds give one number, such as a count of two tasks.
*Not fairly tested*: the setting here cannot show the paper's effect, such as runs with fewer steps
than the paper's shortest ones. Intervals are Student's at 95 %, over seeds; differences are of the
same seed, which also draws the train examples.
"""
DEVIATIONS = """## Where the methods differ from the papers

- **Head**: it reads the mean of the tokens and has no dense layer, where the papers read the first
  token through a dense layer and tanh. `pooling: first, dense: true` in a recipe is the papers'
  head. It is a setting of its own in a table below, once it has run.
- **Optimizer**: AdamW, so a masked gradient also passes the moments. With rate p an entry moves
  about sqrt(1 - p) times as far, and the factor 1 / (1 - p) of GradDrop cancels. Gradients are
  clipped at norm 1, after the mask.
- **Adapters** train both norms of each layer, and not the norm of the embeddings.
- **Gradual unfreezing** trains the embeddings from the first epoch.
- **Annealed rates** go from 0.9 to 0 in equal steps. The paper's rule agrees with itself for ten
  epochs alone.
- **Epoch**: the last one for frozen layers, as in that paper; else the best of dev examples. For
  adapters these are drawn from the train set, and the dev set is the test set.
- **Backbones** are sentence encoders, tuned on pairs of texts after pretraining.
  multilingual-e5-small has 4-bit weights made whole again.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=existing, default=LINES, help="folder of the lines")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--record", action="store_true", help="append the figures of the claims")
    options = parser.parse_args()
    text, drawings = page_of(options.lines)
    for name, drawing in drawings.items():
        save_svg(drawing, options.page.parent / "plots" / name, salt="papers")
    options.page.write_text(text, encoding="utf-8")
    elsa_page.write_page(options.lines, options.page.with_name(elsa_page.PAGE.name))
    if options.record:
        record_claims(options.lines)
    print(options.page)


def record_claims(folder: Path) -> None:
    """Append the figures of the claims that differ from the newest ones of all benchmarks."""
    known = latest()
    sheet = Sheet(command="make papers", machine="; ".join(machines_of(folder)))
    for name, (value, unit) in claimed(folder).items():
        if name not in known or (known[name].value, known[name].unit) != (value, unit):
            sheet.record(name, [value], unit=unit)


def claimed(folder: Path) -> Mapping[str, tuple[float, str]]:
    """Return value and unit of each figure that a claim names, by its name among all figures."""
    figures = all_figures(folder)
    found = dict[str, tuple[float, str]]()
    for claim in (it for paper in read_claims() for it in paper.claims):
        one = figures.get(claim.figure or "")
        if one is not None:
            over = f", {one.of}" if one.of else ""
            unit = f"{claim.reads}{over}; 95 % interval over seeds: {one.text()}"
            found[f"paper.{claim.figure}"] = rounded(one.mean), unit
    return found


def machines_of(folder: Path) -> list[str]:
    runs = {it.hardware for runs in read_all(folder).values() for it in runs}
    return sorted(runs | {read_memory(folder).hardware})


def counted(figures: Mapping[str, Estimate]) -> str:
    verdicts = [it.judged(figures)[0] for paper in read_claims() for it in paper.claims]
    counts = [f"*{it}* {verdicts.count(it)}" for it in Verdict if it in verdicts]
    return f"The verdicts on the {len(verdicts)} claims: {named(counts)}."


def page_of(folder: Path) -> tuple[str, Mapping[str, Figure]]:
    lines, drawings = read_all(folder), dict[str, Figure]()
    figures = all_figures(folder)
    parts = [
        HEAD.format(counts=counted(figures)),
        *(it.markdown(figures) for it in read_claims()),
        DEVIATIONS,
        *(part(lines, drawings) for part in PARTS),
    ]
    return "\n".join(parts), drawings


Drawings = dict[str, Figure]


def elsa_part(name: str, title: str, lines: Lines, drawings: Drawings) -> str:
    """Return a table for each setting, and the plot of the one that stands for all."""
    runs, text = lines.get(name, ()), list[str]()
    tables = elsa_tables(runs)
    for setting, table in tables.items():
        if not table.tasks:
            text.append(f"{setting}: no set has every depth yet ({named(table.unfinished)}).\n")
            continue
        text.append(f"{setting}:\n\n{table.markdown()}")
        if table.learned:
            average, each = table.operating_point(), table.operating_point_by_task()
            text.append(
                f"Most frozen layers that keep 95 % on average: {average or 'none tried'}; 90 % of "
                f"each set but CoLA: {each or 'none tried'}.\n"
            )
    if (best := best_table(tables)) is not None:
        setting, table = best
        drawings[f"papers-{name}.svg"] = draw_relative(table)
        alt = f"Score relative to full fine-tuning over frozen layers: {setting}"
        text.append(f"![{alt}](plots/papers-{name}.svg)\n")
    return section(title, name, runs, "\n".join(text))


def adapter_part(lines: Lines, drawings: Drawings) -> str:
    """Return the gains over full fine-tuning, and mixout next to the runs without it."""
    runs = lines.get("adapter", ())
    plain = [it for it in runs if it.run.sweep == "adapter"]
    text = list[str]()
    if any(method_of(it) == "full" for it in plain):
        with_full = {it.run.data.train_digest for it in plain if method_of(it) == "full"}
        paired = [it for it in plain if it.run.data.train_digest in with_full]
        found = analyze_lowresource(undrawn(paired))
        drawings["papers-adapter.svg"] = found.drawing
        alt = "Score of adapters above full fine-tuning, of each task, with deviations over seeds"
        text += [found.markdown(), f"![{alt}](plots/papers-adapter.svg)\n"]
    mixed = [it for it in runs if regularizer_label(it.run.recipe) != "none"]
    pretrained = [it for it in runs if it.run.sweep == "tapt"]
    for title, them in (
        ("With mixout", mixed),
        ("With and without pretraining on the task's texts", pretrained),
    ):
        if them:
            text.append(f"{title}:\n\n{cells_markdown(cells_of(undrawn(them)))}")
    return section("Adapters at 1k examples", "adapter", runs, "\n".join(text))


def graddrop_part(lines: Lines, drawings: Drawings) -> str:
    runs = lines.get("graddrop", ())
    cells, text = graddrop_cells(runs), ""
    if cells:
        drawings["papers-graddrop.svg"] = draw_curves(cells)
        alt = "Dev score over epochs of each variant, a panel a task"
        text = f"{graddrop_markdown(cells)}\n![{alt}](plots/papers-graddrop.svg)\n"
    return section("Dropped gradients (GradDrop)", "graddrop", runs, text)


def zeroshot_part(lines: Lines, drawings: Drawings) -> str:
    """Return the scores by language of each method, at its best rate by English dev examples."""
    del drawings
    runs, text = lines.get("zeroshot", ()), list[str]()
    for task in SENTENCES:
        ours = [it for it in runs if it.run.task == task and it.transfer]
        tuned = [it for it in ours if it.run.sweep == "zeroshot"]
        dropped = [it for it in ours if it.run.sweep != "zeroshot"]
        for them, name_of in ((tuned, method_of), (dropped, regularizer_of)):
            if them:
                text.append(f"{task}, {them[0].finished.metric}:\n\n{languages(them, name_of)}")
    return section("Zero-shot transfer", "zeroshot", runs, "\n".join(text))


def regularizer_of(run: PaperRun) -> str:
    return regularizer_label(run.run.recipe)


def languages(runs: Sequence[PaperRun], name_of: Callable[[PaperRun], str]) -> str:
    """Return a row for each method: English, the mean of the other languages, and each of them."""
    names = sorted(set[str].intersection(*(set(it.transfer) for it in runs)))
    shown = [name.removeprefix("ud_").removesuffix("_pos").rpartition("_")[2] for name in names]
    rows = [
        [
            method,
            f"{its[0].run.recipe.learning_rate:g}",
            f"{mean(it.finished.score for it in its):.3f}",
            estimate([transferred(it) for it in its]).text(),
            *(f"{mean(it.transfer[name] for it in its):.3f}" for name in names),
        ]
        for method, its in best_runs(runs, name_of).items()
    ]
    return markdown_table(["method", "rate", "English", "mean of others", *shown], rows)


def robustness_part(lines: Lines, drawings: Drawings) -> str:
    runs, text = lines.get("robustness", ()), ""
    if runs:
        found = analyze_robustness(undrawn(runs))
        drawings["papers-robustness.svg"] = found.drawing
        alt = "Scores over seeds at each learning rate, of each method"
        text = f"{found.markdown()}\n![{alt}](plots/papers-robustness.svg)\n"
    return section("Learning rates", "robustness", runs, text)


def section(title: str, name: str, runs: Sequence[PaperRun], text: str) -> str:
    """Return a part with the sweep files of its runs and their time."""
    if not runs:
        return f"## {title}: not run\n\nThe plan has these runs: `benchmarks/papers/{name}.yaml`.\n"
    files = sorted({it.run.sweep for it in runs})
    told = named([f"[{it}.yaml](../../benchmarks/papers/{it}.yaml)" for it in files])
    hours = sum(it.cpu_seconds for it in runs) / 3600
    seeds = sorted({it.run.recipe.seed for it in runs})
    return (
        f"## {title}\n\nSettings: {told}. {len(runs)} runs, {hours:.1f} hours of one core, seeds "
        f"{', '.join(map(str, seeds))}.\n\n{text}"
    )


PARTS: tuple[Callable[[Lines, Drawings], str], ...] = (
    lambda lines, drawn: elsa_part("elsa-mpnet", "Frozen layers, 12 layers (Elsa)", lines, drawn),
    lambda lines, drawn: elsa_part("elsa-minilm", "Frozen layers, 6 layers (Elsa)", lines, drawn),
    zeroshot_part,
    adapter_part,
    graddrop_part,
    robustness_part,
)

if __name__ == "__main__":
    main()
