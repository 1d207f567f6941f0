"""Renders the measured figures of every architecture into docs/architecture/05-architectures.md."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.recording import ROOT, Figure
from nunatak_registry.cards import markdown_table

PAGE = ROOT / "docs" / "architecture" / "05-architectures.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
SPEED, ANSWERS = "forward.architecture.", "server.architecture."
HEADER = (
    "`model_type`",
    "largest difference over HTTP",
    "faster than transformers",
    "than onnxruntime",
    "long texts: than transformers",
)


def write_table(figures: Mapping[str, Figure], page: Path = PAGE) -> None:
    """Replace the table between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{table(figures)}{END}{after}", encoding="utf-8")


def table(figures: Mapping[str, Figure]) -> str:
    """One line for each architecture that has a figure."""
    names = sorted({name.split(".")[2] for name in figures if name.startswith((SPEED, ANSWERS))})
    return markdown_table(HEADER, (_cells(name, figures) for name in names))


def _cells(name: str, figures: Mapping[str, Figure]) -> tuple[str, ...]:
    answers = figures.get(f"{ANSWERS}{name}")
    return (
        f"`{name}`",
        "" if answers is None else f"{answers.value:.1e} {answers.unit}",
        *(
            _times(figures.get(f"{SPEED}{name}.{rival}"))
            for rival in ("transformers", "onnxruntime", "long.transformers")
        ),
    )


def _times(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.2f} times"
