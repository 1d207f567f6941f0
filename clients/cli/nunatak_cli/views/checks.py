"""What `verify` found, as a table and as JSON."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue
from rich.table import Table

from nunatak_registry import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing found; `is_error` says whether the version can no longer be served."""

    subject: str
    kind: str
    is_error: bool
    message: str


def check_of(finding: Finding) -> Check:
    """A finding of the registry's own check."""
    moved = f"; moved to {finding.moved_to}" if finding.moved_to is not None else ""
    return Check(
        subject=finding.subject,
        kind=finding.kind.value,
        is_error=finding.kind.is_error,
        message=finding.message + moved,
    )


def check_table(checks: Iterable[Check]) -> Table:
    """One row per finding; what does no harm is dim."""
    table = Table(box=None, header_style="bold")
    table.add_column("where", no_wrap=True, max_width=40)
    table.add_column("what", no_wrap=True)
    table.add_column("message")
    for check in checks:
        style = "red" if check.is_error else "dim"
        table.add_row(check.subject, check.kind, check.message, style=style)
    return table


def check_json(check: Check) -> dict[str, JsonValue]:
    """One finding."""
    return {
        "subject": check.subject,
        "kind": check.kind,
        "is_error": check.is_error,
        "message": check.message,
    }
