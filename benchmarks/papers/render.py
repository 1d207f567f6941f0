"""The papers' tables, only from the results of their sweeps: `docs/results/papers.md`.

The program can run during the sweeps. In place of a table without results, the page has the command
that makes them.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.harness.recording import FIGURES, latest, record
from benchmarks.papers.analysis.lowresource import analyze_lowresource
from benchmarks.papers.analysis.robustness import analyze_robustness
from benchmarks.papers.analysis.trained import draw_losses, draw_similarities
from benchmarks.papers.elsa_table import TARGET, draw_relative, elsa_table
from benchmarks.papers.graddrop_table import draw_curves, graddrop_cells, graddrop_markdown
from nunatak_contract.cards import markdown_table
from nunatak_training.sweeps import (
    Failed,
    ResultsFolder,
    RunRecord,
    cells_markdown,
    cells_of,
    in_order,
)
from nunatak_training.sweeps.tables import regularizer_label

DEPLOYED, FORMULA = "paper.elsa.saved_deployed", "paper.elsa.saved_formula"
SWEEPS = Path(__file__).parent
PAGE = FIGURES.parent / "papers.md"
PLOTS = FIGURES.parent / "plots"
READING = SWEEPS / "findings.md"
"""The conclusions of the tables, written by a person after the sweeps."""
HEAD = """# The papers' tables

MiniLM (6 layers, width 384), trained by `nunatak sweep` on capped data sets. Unless noted, scores
are means ± standard deviation over seeds, on the dev examples that also chose the epoch.
`make papers DATA=folder` repeats everything. Each run is one line of JSON in `.bench/papers`, and
existing runs are not repeated. The sweep file below each title has sizes, rates and epochs.
"""
# Equal results give equal bytes: no date, no random ids.
mpl.rcParams |= {"svg.hashsalt": "papers", "svg.fonttype": "none"}


def main() -> None:
    """Write the page, its plots, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of the sweeps' results")
    parser.add_argument("--record", action="store_true", help="append the figures")
    arguments = parser.parse_args()
    PLOTS.mkdir(parents=True, exist_ok=True)
    folder: Path = arguments.results
    elsa = _records(folder / "elsa")
    parts = [
        HEAD,
        READING.read_text(encoding="utf-8") if READING.exists() else "",
        section("Freezing layers (Elsa)", "elsa", elsa, elsa_part(elsa)),
        adapter_sections(_records(folder / "adapter")),
        robustness_section(_records(folder / "robustness")),
        inside_section(folder),
        graddrop_section(_records(folder / "graddrop")),
    ]
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    if arguments.record and elsa:
        table = elsa_table(elsa)
        record(
            "paper.elsa.relative.n4",
            [table.average(4)],
            unit=f"of full fine-tuning, mean of {len(table.tasks)} tasks, 4 of 6 layers frozen",
            command="make papers",
        )
    print(PAGE)


def elsa_part(records: Sequence[RunRecord]) -> str:
    """Return table, plot and operating point."""
    if not records:
        return ""
    table = elsa_table(records)
    if not table.tasks or not table.depths:
        return cells_markdown(cells_of(records))
    alt = "Score relative to full fine-tuning over frozen layers, of each task"
    image = _plot(draw_relative(table), "papers-elsa.svg", alt)
    point = _layers(table.operating_point(), table.num_layers)
    return (
        f"{table.markdown()}\n{image}\n"
        f"Operating point at {TARGET:.0%} of full fine-tuning, mean of all sets: {point}.\n"
        f"{savings()}"
    )


def savings() -> str:
    """Return the measured savings of a deployment, if there are any, next to the formula."""
    figures = latest()
    if not {DEPLOYED, FORMULA} <= figures.keys():
        return ""
    deployed, formula = figures[DEPLOYED], figures[FORMULA]
    return (
        f"\nSaved: {formula.value:.4f} {formula.unit}.\n"
        f"The ledger of a running server adds the same parameters: {deployed.value:.4f}.\n"
        "With `--backbone-layers` the server holds only the layers that these tasks read,\n"
        "as the formula assumes. Without it, the upper layers of the backbone add once.\n"
        "[Memory of processes](savings/report.md) is measured on another model.\n"
    )


def adapter_sections(records: Sequence[RunRecord]) -> str:
    """Return the gains over full fine-tuning, and mixout and pretraining, each off and on."""
    plain = [it for it in records if not _is_mixed(it) and it.run.recipe.tapt is None]
    gained = ""
    if plain:
        findings = analyze_lowresource(plain)
        alt = "Score of bottlenecks above full fine-tuning, of each task"
        image = _plot(findings.drawing, "papers-adapter.svg", alt)
        gained = f"{findings.markdown()}\n{image}"
    mixed = _off_and_on(plain, [it for it in records if _is_mixed(it)])
    adapted = _off_and_on(plain, [it for it in records if it.run.recipe.tapt is not None])
    note = "Scores are of the dev set, which here chose nothing.\n\n"
    return "\n".join(
        (
            section("Adapters at 1k examples", "adapter", plain, note + gained),
            section("Mixout", "mixout", mixed, cells_markdown(cells_of(mixed))),
            section(
                "Pretraining on the task's texts (TAPT)",
                "tapt",
                adapted,
                cells_markdown(cells_of(adapted)),
            ),
        )
    )


def _is_mixed(record: RunRecord) -> bool:
    return regularizer_label(record.run.recipe) != "none"


def _off_and_on(off: Sequence[RunRecord], on: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs with an option, after the runs without it on the same tasks and methods."""
    compared = {(it.run.task, it.run.recipe.method) for it in on}
    return [*(it for it in off if (it.run.task, it.run.recipe.method) in compared), *on]


def robustness_section(records: Sequence[RunRecord]) -> str:
    """Return box plots over learning rates."""
    text = ""
    if records:
        findings = analyze_robustness(records)
        alt = "Scores over seeds at each learning rate, of each method"
        image = _plot(findings.drawing, "papers-robustness.svg", alt)
        text = f"{findings.markdown()}\n{image}"
    return section("Learning rates", "robustness", records, text)


def inside_section(folder: Path) -> str:
    """Return the similarity by layer, and the loss around the trained parameters."""
    text = "## Inside the models\n\nSST-2 at 1k examples, seed 0, by the recipes of adapter.yaml.\n"
    rsa, landscape = folder / "rsa" / "rsa.csv", folder / "landscape" / "landscape.csv"
    if rsa.exists():
        similarities = read_points(rsa)
        alt = "Similarity to the backbone over layers, of each run"
        image = _plot(draw_similarities(similarities), "papers-rsa.svg", alt)
        text += (
            "\nSimilarity of each layer's representations to the backbone's (RSA; 1: unmoved):\n\n"
            f"{by_layer(similarities)}\n{image}"
        )
    else:
        text += f"\n#{not_measured('Similarity by layer', 'rsa')}"
    if landscape.exists():
        alt = "Dev loss along that line, of each run"
        image = _plot(draw_losses(read_points(landscape)), "papers-landscape.svg", alt)
        text += (
            "\nDev loss on the line from before training (0) through what was trained (1):\n\n"
            f"{image}"
        )
    else:
        text += f"\n#{not_measured('Loss landscape', 'landscape')}"
    return text


def read_points(table: Path) -> list[tuple[str, float, float]]:
    """Read the rows of an analysis: a run and two numbers each."""
    with table.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [(run, float(place), float(value)) for run, place, value in rows]


def by_layer(points: Sequence[tuple[str, float, float]]) -> str:
    """Return a table with a row per run and a column per layer; points are run, layer, value."""
    layers = list(dict.fromkeys(layer for _, layer, _ in points))
    found = {(run, layer): value for run, layer, value in points}
    runs = dict.fromkeys(run for run, _, _ in points)
    return markdown_table(
        ["run", *(f"layer {layer:.0f}" for layer in layers)],
        [[run, *(f"{found[run, layer]:.3f}" for layer in layers)] for run in runs],
    )


def graddrop_section(records: Sequence[RunRecord]) -> str:
    """Return the averages by variant, and the curves."""
    text = ""
    cells = graddrop_cells(records)
    if cells:
        alt = "Dev score over epochs of each variant, a panel a task"
        image = _plot(draw_curves(cells), "papers-graddrop.svg", alt)
        text = f"{graddrop_markdown(cells)}\n{image}"
    return section("Dropped gradients (GradDrop)", "graddrop", records, text)


def section(title: str, name: str, records: Sequence[RunRecord], text: str) -> str:
    """Return a table with its sweep file, the share of finished runs, and their time."""
    sweep = (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8")
    if not records:
        return not_measured(title, name)
    head = f"## {title}\n\n```yaml\n{sweep}```\n\n"
    failed = sum(isinstance(it.outcome, Failed) for it in records)
    minutes = sum(it.cpu_seconds for it in records) / 60
    sizes = sorted({it.run.data.num_train for it in records})
    return (
        f"{head}{len(records)} runs ({failed} failed), {minutes:.0f} minutes of one core, "
        f"{mean(it.cpu_seconds for it in records):.0f} s a run; "
        f"{', '.join(map(str, sizes))} train examples.\n\n{text}"
    )


def not_measured(title: str, name: str) -> str:
    """Return the text for a part without results: the command that makes the results."""
    return f"## {title}: not measured\n\n`make papers ONLY={name} DATA=folder`\n"


def _layers(frozen: int | None, num_layers: int) -> str:
    return "none of those tried" if frozen is None else f"{frozen} of {num_layers} layers frozen"


def _records(folder: Path) -> list[RunRecord]:
    return in_order(ResultsFolder(folder).records())


def _plot(drawing: Figure, name: str, alt: str) -> str:
    """Write a plot; return the Markdown of its image."""
    drawing.savefig(PLOTS / name, metadata={"Date": None})  # pyright: ignore[reportUnknownMemberType]
    return f"![{alt}](plots/{name})\n"


if __name__ == "__main__":
    main()
