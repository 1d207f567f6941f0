"""Writes the report: one self-contained HTML file, Markdown, JSON and PNG."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from pydantic import TypeAdapter

from benchmarks.savings.page.canvas import INK, styled
from benchmarks.savings.page.charts import draw_all
from benchmarks.savings.page.facts import Facts, Headline, gather, headlines
from benchmarks.savings.page.tables import Sheet, all_sheets
from benchmarks.savings.results import AnyResult, load_results
from nunatak_registry.cards import markdown_table

STYLE = Path(__file__).with_name("style.css")
TITLE = "What one shared backbone saves"
_RESULTS: TypeAdapter[dict[str, AnyResult]] = TypeAdapter(dict[str, AnyResult])


def write_report(folder: Path, out: Path, *, price_per_hour: float) -> list[Path]:
    """Write the report of a folder's results; return the files.

    Raises:
        NunatakError: `invalid_settings`, the folder holds no results.
    """
    results = load_results(folder)
    facts = gather(results, price_per_hour=price_per_hour)
    with styled():
        return _write(facts, results, out)


def _write(facts: Facts, results: dict[str, AnyResult], out: Path) -> list[Path]:
    drawn = draw_all(facts)
    texts = {
        "report.html": to_html(facts, {name: to_svg(it) for name, it in drawn.items()}),
        "report.md": to_markdown(facts, drawn),
        "report.json": _RESULTS.dump_json(results, indent=1).decode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    for name, figure in drawn.items():
        # Only the page follows a theme, so a file needs its own background.
        figure.savefig(out / f"{name}.png", dpi=110, facecolor="white")  # pyright: ignore[reportUnknownMemberType]
    return [out / name for name in (*texts, *(f"{name}.png" for name in drawn))]


def to_html(facts: Facts, plots: Mapping[str, str]) -> str:
    """Return the page, with style and plots inside."""
    style = STYLE.read_text(encoding="utf-8")
    cards = "".join(_card(headline) for headline in headlines(facts))
    sections = "".join(_section(sheet, plots) for sheet in all_sheets(facts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{style}</style></head><body><main>"
        f"<header><h1>{TITLE}</h1><p>Many text tasks, one frozen encoder: memory, throughput and "
        "latency, measured in running servers against what is done without sharing.</p></header>"
        f'<div class="cards">{cards}</div>{sections}</main></body></html>\n'
    )


def to_markdown(facts: Facts, plots: Sequence[str] | Mapping[str, object]) -> str:
    """Return the report as Markdown, with the plots as files."""
    parts = [f"# {TITLE}", ""]
    parts += [f"- **{it.number}**: {it.text}" for it in headlines(facts)]
    for sheet in all_sheets(facts):
        table = markdown_table(sheet.header, ([_escaped(it) for it in row] for row in sheet.rows))
        parts += ["", f"## {sheet.title}", "", sheet.note, "", table, *_images(sheet, plots)]
    return "\n".join(parts).rstrip() + "\n"


def _images(sheet: Sheet, plots: Sequence[str] | Mapping[str, object]) -> list[str]:
    return [f"![{it.alt}]({it.name}.png)" for it in sheet.plots if it.name in plots]


def to_svg(figure: Figure) -> str:
    """Return a plot to put into a page: no header, no date, no background, the page's ink."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})  # pyright: ignore[reportUnknownMemberType]
    _, head, body = stream.getvalue().replace(INK, "currentColor").partition("<svg")
    return head + body


def _card(headline: Headline) -> str:
    return f"<article><b>{escape(headline.number)}</b><p>{escape(headline.text)}</p></article>"


def _section(sheet: Sheet, plots: Mapping[str, str]) -> str:
    figures = "".join(
        f'<figure role="img" aria-label="{escape(it.alt)}">{plots[it.name]}</figure>'
        for it in sheet.plots
        if it.name in plots
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in sheet.header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in sheet.rows
    )
    return (
        f"<section><h2>{escape(sheet.title)}</h2><p>{escape(sheet.note)}</p>"
        f'<div class="plots">{figures}</div><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
