"""Renders the figures of docs/results/figures.jsonl as the pages of docs/results.

The table of architectures is a part of a page about them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.forward.architecture_table import write_table

from benchmarks.forward.render import PREFIX as FORWARD
from benchmarks.forward.render import write_forward
from benchmarks.harness.recording import FIGURES, Figure, latest
from benchmarks.registry.render import write_page as write_registry
from benchmarks.savings.five_page import PREFIX as RACE
from benchmarks.savings.five_page import write_race
from nunatak_registry.cards import markdown_table

PAGE = FIGURES.parent / "README.md"
HEAD = """# Results

The newest value of every measured figure, as a median. Figures that miss their goal stay on the
page. Every line of `figures.jsonl` holds the command, commit, date, hardware and package versions
of a measurement. `make figures` renders this page from that file.

| | figures | with a goal | met |
|---|---|---|---|
"""
COLUMNS = ("figure", "value", "of what", "deciles (runs)")
MARKS = {None: "", True: "yes", False: "**no**"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Figures that belong together, by the first part of their identifiers."""

    prefix: str
    title: str
    about: str

    def takes(self, figure: Figure) -> bool:
        """Whether a figure belongs to this section."""
        return figure.id.startswith(self.prefix)

    @property
    def link(self) -> str:
        """The title of the section, as a link to its heading."""
        anchor = "".join(it for it in self.title.lower() if it.isalnum() or it in " -")
        return f"[{self.title}](#{anchor.replace(' ', '-')})"


SECTIONS = (
    Section(
        prefix=FORWARD,
        title="The mixed forward",
        about="The comparison with rivals, the reasons for missed goals, and all figures without a "
        "goal: [forward.md](forward.md).",
    ),
    Section(
        prefix="server.",
        title="The server",
        about="What is measured, and why one figure misses: [server.md](server.md).",
    ),
    Section(
        prefix="verdict.",
        title="Verdicts",
        about="Decisions of policies while tasks change and fail: [server.md](server.md).",
    ),
    Section(
        prefix="gateway.",
        title="Gateways",
        about="Protocols of LLM gateways over the native route: [server.md](server.md).",
    ),
    Section(
        prefix=RACE,
        title="Five classifiers about every text",
        about="One trunk against five full models, with F1 next to speed: [race.md](race.md).",
    ),
    Section(
        prefix="batch.",
        title="Scoring a corpus",
        about="How a corpus is scored: [batch.md](../batch.md).",
    ),
    Section(
        prefix="cluster.",
        title="Replicas",
        about="What runs, and what the controls are: [server.md](server.md#replicas).",
    ),
    Section(
        prefix="scale.",
        title="A fleet of 1,000 replicas, simulated",
        about="Assumptions, checks, and where it breaks first: [scale.md](../scale.md).",
    ),
    Section(
        prefix="report.",
        title="Whole servers compared with others",
        about="With plots: [the savings report](savings/report.md).",
    ),
    Section(
        prefix="training.",
        title="Speed of training",
        about="How to train: [training](../training.md). What patience saves: "
        "[early-stopping.md](early-stopping.md).",
    ),
    Section(
        prefix="paper.",
        title="The papers",
        about="Tables, plots, and which findings hold here: [papers.md](papers.md).",
    ),
    Section(
        prefix="real.",
        title="Real data",
        about="How the scores were made: [real-data.md](real-data.md).",
    ),
    Section(
        prefix="calibration.",
        title="Calibration",
        about="Scores that one may set a threshold on: [calibration.md](calibration.md).",
    ),
    Section(
        prefix="registry.",
        title="The registry under torture",
        about="The campaigns: [registry.md](registry.md).",
    ),
)


def main() -> None:
    """Write the page of all figures, and the pages of single benchmarks."""
    figures = latest()
    PAGE.write_text(page(figures), encoding="utf-8")
    write_registry()
    write_forward(figures)
    write_table(figures)
    write_race(figures)
    print(f"{len(figures)} figures in {PAGE.relative_to(Path.cwd())}")


def page(figures: dict[str, Figure]) -> str:
    """Return the whole page; a figure that belongs to no section is an error."""
    shown = [figures[name] for name in sorted(figures) if not is_detail(figures[name])]
    homeless = [it.id for it in shown if not any(section.takes(it) for section in SECTIONS)]
    if homeless:
        raise ValueError(f"figures of no section of the page: {', '.join(homeless)}")
    parts = [(section, [it for it in shown if section.takes(it)]) for section in SECTIONS]
    parts = [(section, them) for section, them in parts if them]
    return HEAD + "".join(_count(*part) for part in parts) + "".join(_section(*it) for it in parts)


def is_detail(figure: Figure) -> bool:
    """Whether only the page of its benchmark shows a figure."""
    return figure.id.startswith((FORWARD, RACE)) and figure.goal is None


def _count(section: Section, figures: Sequence[Figure]) -> str:
    held = [it for it in figures if it.met is not None]
    met = sum(bool(it.met) for it in held)
    return f"| {section.link} | {len(figures)} | {len(held) or ''} | {met if held else ''} |\n"


def _section(section: Section, figures: Sequence[Figure]) -> str:
    makers = sorted({_maker(it) for it in figures})
    numbers = {maker: number for number, maker in enumerate(makers, start=1)}

    def number(figure: Figure) -> str:
        return str(numbers[_maker(figure)])

    held = [it for it in figures if it.goal is not None]
    others = [it for it in figures if it.goal is None]
    text = f"\n## {section.title}\n\n{section.about}\n"
    if held:
        header = (*COLUMNS, "goal", "met", "by")
        rows = (
            [*_cells(it), it.goal or "", MARKS[it.met], str(numbers[_maker(it)])] for it in held
        )
        text += "\n" + markdown_table(header, rows)
    if others:
        table = markdown_table((*COLUMNS, "by"), ([*_cells(it), number(it)] for it in others))
        count = f"{len(others)} figures" if len(others) > 1 else "One figure"
        folded = f"<details><summary>{count} without a goal</summary>\n\n{table}\n</details>\n"
        text += "\n" + (folded if held else table)
    missed = [it for it in held if not it.met and it.reason]
    if missed:
        text += "\n" + "".join(f"- `{it.id}` misses: {it.reason}\n" for it in missed)
    return text + "\nMade by:\n\n" + "".join(f"{numbers[it]}. {it}\n" for it in makers)


def _maker(figure: Figure) -> str:
    return f"`{figure.command}`, {figure.hardware}, {figure.date}"


def _cells(figure: Figure) -> list[str]:
    spread = f"{figure.low:.4g} to {figure.high:.4g} ({figure.runs})" if figure.runs > 1 else "(1)"
    return [f"`{figure.id}`", f"{figure.value:.4g}", figure.unit, spread]


if __name__ == "__main__":
    main()
