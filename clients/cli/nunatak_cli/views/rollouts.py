"""Canaries and shadows, as lines, tables and JSON values."""

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_client import ShadowReport
from nunatak_registry import CandidateEvent, CandidateEventKind


def candidate_line(event: CandidateEvent) -> Text:
    """A change of a candidate in one line."""
    it = event.candidate
    name = (f"{it.task}@{it.alias}", "cyan")
    match event.kind:
        case CandidateEventKind.SET:
            return Text.assemble(
                name, f" has {it.role} version {it.version} on {it.share:.2%} of its requests"
            )
        case CandidateEventKind.END:
            return Text.assemble(name, f" has no {it.role} any more (was version {it.version})")


def candidate_json(event: CandidateEvent) -> dict[str, JsonValue]:
    """A change of a candidate."""
    it = event.candidate
    return {
        "task": it.task,
        "alias": it.alias,
        "role": it.role.value,
        "kind": event.kind.value,
        "version": it.version,
        "share": it.share,
        "at": event.at.isoformat(),
    }


def report_table(report: ShadowReport) -> Table:
    """How a shadow has done, and how many inputs drifted how far."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("task", f"{report.task}@{report.alias}")
    table.add_row("answers", f"version {report.version}")
    table.add_row("shadow", f"version {report.shadow_version} on {report.share:.2%} of requests")
    table.add_row("compared", f"{report.compared} inputs")
    table.add_row("agreement", _number(report.agreement))
    table.add_row("mean drift", _number(report.mean_drift))
    table.add_row("max drift", _number(report.max_drift))
    for count in report.drift_histogram:
        bound = "beyond" if count.up_to is None else f"up to {count.up_to:g}"
        table.add_row(f"drift {bound}", f"{count.inputs} inputs")
    table.add_row("errors", f"{report.errors} inputs")
    table.add_row("dropped", f"{report.dropped} inputs")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
