"""Renders the figures of docs/results/figures.jsonl as the pages of docs/results.

README.md has all figures. Each file of `pages` is the text of a page, with places for figures:
`{table:START}` has a line for each figure whose identifier starts so, `{matrix:START}` a row and a
column for the two parts after it, and `{made:START}` the commands. START is a regular expression.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.harness.plots import draw_all
from benchmarks.harness.recording import FIGURES, Figure, latest
from nunatak_contract.cards import markdown_table

FOLDER, PAGES = FIGURES.parent, Path(__file__).with_name("pages")
TARGETS = {"savings": "savings/report.md"}
"""Pages that are not in docs/results itself."""
PLACE = re.compile(r"^\{(table|matrix|made):(.+)\}$", re.MULTILINE)
POINTS = re.compile(r"^forward\..*(\.(ms|curve)\.|\.n\d+$)|^race\.five\.(minilm|modernbert|f1)\.")
"""Figures that are points of plots, or cells of a matrix, have no line in the tables."""
DETAILS = re.compile(r"forward\.|race\.")
"""Figures without a goal that have no line in README.md, because their own page has them."""
RETIRED = "f2bed8a9"
"""The last commit with the programs of figures that this checkout cannot measure again."""
LATER = "00b1e403"
"""The same of the programs that RETIRED does not have yet."""
HEAD = f"""# Results

The newest value of every measured figure, as a median. Figures that miss their goal stay on the
page. Every line of `figures.jsonl` holds the command, commit, date, hardware and package versions
of a measurement. `make figures` renders this page from that file.

The figures are a record. Some of their programs are no longer part of the checkout. They are in the
commit `{RETIRED}` (`git show {RETIRED}:benchmarks/server/replicas.py`), or in `{LATER}`.

| | figures | with a goal | met |
|---|---|---|---|
"""
COLUMNS = ("figure", "value", "of what", "deciles (runs)")
MARKS = {None: "", True: "yes", False: "**no**"}
SECTIONS = (
    ("forward.", "The mixed forward", "Compared with rivals: [forward.md](forward.md)."),
    ("gpu.", "The mixed forward on a CUDA device", "`make gpu` checks and measures it."),
    ("server.", "The server", "What is measured, and how: [server.md](server.md)."),
    ("verdict.", "Verdicts", "Decisions of policies while tasks change and fail."),
    (
        "stream.",
        "Verdicts about streams",
        "What is held back: [streams.md](../streams.md#what-is-held-back).",
    ),
    (
        "decisions.",
        "Typed questions",
        "The questions and their cards: [questions.md](../questions.md).",
    ),
    ("gateway.", "Gateways", "Protocols of LLM gateways over the native route."),
    ("race.", "Five classifiers about every text", "Speed next to F1: [race.md](race.md)."),
    ("batch.", "Scoring a corpus", "How a corpus is scored: [batch.md](../batch.md)."),
    ("cluster.", "Replicas", "What ran: [server.md](server.md#replicas)."),
    ("scale.", "A fleet of 1,000 replicas, simulated", "Assumptions: [scale.md](../scale.md)."),
    ("report.", "Whole servers compared with others", "Systems: [report.md](savings/report.md)."),
    (
        "ready.",
        "Ready tasks",
        "Of `nunatak init --with`: [training.md](../training.md#ready-tasks).",
    ),
    ("training.", "Speed of training", "How to train: [training](../training.md)."),
    ("paper.", "The papers", "Tables, and which findings hold here: [papers.md](papers.md)."),
    ("real.", "Real data", "How the scores were made: [real-data.md](real-data.md)."),
    ("calibration.", "Calibration", "Before and after: [calibration.md](calibration.md)."),
    ("registry.", "The registry under torture", "The campaigns: [registry.md](registry.md)."),
)
"""Start of the identifiers, title and text of each section of README.md."""


def main() -> None:
    figures = latest()
    write(figures, FOLDER)
    print(f"{len(figures)} figures in {FOLDER.relative_to(Path.cwd())}")


def write(figures: dict[str, Figure], folder: Path) -> None:
    draw_all(figures, folder / "plots")
    (folder / "README.md").write_text(overview(figures), encoding="utf-8")
    for template in PAGES.glob("*.md"):
        target = folder / TARGETS.get(template.stem, template.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = template.read_text(encoding="utf-8")
        target.write_text(PLACE.sub(lambda it: filled(it[1], it[2], figures), text), "utf-8")


def filled(kind: str, start: str, figures: dict[str, Figure]) -> str:
    """Return the text for one place of a page."""
    ours = [figures[it] for it in sorted(figures) if re.match(start, it)]
    if kind == "made":
        return "Made by:\n\n" + "\n".join(f"- {it}" for it in sorted({_maker(it) for it in ours}))
    if kind == "matrix":
        return matrix(start, figures).rstrip()
    rows = (
        [f"`{it.id}`", f"{it.value:.4g} {it.unit}", _spread(it), it.goal or "", MARKS[it.met]]
        for it in ours
        if not POINTS.search(it.id)
    )
    reasons = [f"- `{it.id}` misses: {it.reason}" for it in ours if it.met is False and it.reason]
    table = markdown_table(("figure", "median", "deciles (runs)", "goal", "met"), rows)
    return "\n".join([table, *reasons]).rstrip()


def matrix(start: str, figures: dict[str, Figure]) -> str:
    """Return a table with the two last parts of identifiers as rows and columns, and the means."""
    found = {re.fullmatch(rf"{start}\.(\w+)\.([\w-]+)", it): it for it in figures}
    cells = {(match[1], match[2]): figures[it].value for match, it in found.items() if match}
    rows, columns = (list(dict.fromkeys(it[place] for it in cells)) for place in (0, 1))
    lines = [
        [row, *(f"{cells.get((row, it), float('nan')):.4g}" for it in columns)] for row in rows
    ]
    if start.endswith("f1"):
        means = (mean(cells[row, column] for row in rows) for column in columns)
        lines.append(["**mean**", *(f"**{it:.4g}**" for it in means)])
    return markdown_table(("", *columns), lines)


def overview(figures: dict[str, Figure]) -> str:
    """Return the page of all figures; a figure that belongs to no section is an error."""
    shown = [figures[it] for it in sorted(figures)]
    shown = [it for it in shown if it.goal is not None or not DETAILS.match(it.id)]
    homeless = [it.id for it in shown if not it.id.startswith(tuple(s for s, _, _ in SECTIONS))]
    if homeless:
        raise ValueError(f"figures of no section of the page: {', '.join(homeless)}")
    parts = [
        (section, [it for it in shown if it.id.startswith(section[0])]) for section in SECTIONS
    ]
    parts = [(section, them) for section, them in parts if them]
    counts = (_count(title, them) for (_, title, _), them in parts)
    return (
        HEAD
        + "".join(counts)
        + "".join(_section(title, about, them) for (_, title, about), them in parts)
    )


def _count(title: str, figures: Sequence[Figure]) -> str:
    held = [it for it in figures if it.met is not None]
    met = sum(bool(it.met) for it in held) if held else ""
    anchor = "".join(it for it in title.lower() if it.isalnum() or it in " -").replace(" ", "-")
    return f"| [{title}](#{anchor}) | {len(figures)} | {len(held) or ''} | {met} |\n"


def _section(title: str, about: str, figures: Sequence[Figure]) -> str:
    makers = sorted({_maker(it) for it in figures})

    def cells(it: Figure) -> list[str]:
        number = str(makers.index(_maker(it)) + 1)
        goal = [it.goal, MARKS[it.met]] if it.goal else []
        return [f"`{it.id}`", f"{it.value:.4g}", it.unit, _spread(it), *goal, number]

    held = [it for it in figures if it.goal is not None]
    others = [it for it in figures if it.goal is None]
    text = f"\n## {title}\n\n{about}\n"
    if held:
        text += "\n" + markdown_table((*COLUMNS, "goal", "met", "by"), map(cells, held))
    if others:
        table = markdown_table((*COLUMNS, "by"), map(cells, others))
        summary = f"<details><summary>{len(others)} without a goal</summary>"
        text += "\n" + (f"{summary}\n\n{table}\n</details>\n" if held else table)
    missed = [it for it in held if not it.met and it.reason]
    if missed:
        text += "\n" + "".join(f"- `{it.id}` misses: {it.reason}\n" for it in missed)
    made = "".join(f"{number}. {it}\n" for number, it in enumerate(makers, start=1))
    return f"{text}\nMade by:\n\n{made}"


def _maker(figure: Figure) -> str:
    return f"`{figure.command}`, {figure.hardware}, {figure.date}"


def _spread(figure: Figure) -> str:
    return f"{figure.low:.4g} to {figure.high:.4g} ({figure.runs})" if figure.runs > 1 else "(1)"


if __name__ == "__main__":
    main()
