"""`nunatak doubts`: list labelled examples whose label is likely wrong."""

# ruff: noqa: PLC0415 - the command imports torch when it runs, not for --help

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_cli import options
from nunatak_cli.output import plain_table, print_outcome, tell_rejected
from nunatak_contract.errors import needs_extra
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import shown_progress
from nunatak_rows import check_rows_file, write_rows
from nunatak_rows.written import dialect_like

if TYPE_CHECKING:
    from nunatak_training.doubts import Doubt

SHOWN = 20
"""Doubts that people see; a file and JSON have all."""
SHOWN_CHARACTERS = 80


def doubts(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    data: Annotated[
        str, typer.Option(metavar="PATH", help="Examples with one label each, as for `train`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv|FILE.jsonl", help="Write all doubts to this file."),
    ] = None,
    rows: options.LabelledRows,
    escape_formulas: options.EscapeFormulasOption = False,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that are read of a text (128).")
    ] = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    cache: options.CacheOption = True,
    compute: options.ComputeOptions,
    backbone: options.BackboneOption = None,
) -> None:
    """List examples whose label is likely wrong, by cross-validation; the strongest doubt first."""
    check_rows_file("--out", out, Path(data))
    with needs_extra("training"):
        from nunatak_training.doubts import find_doubts
        from nunatak_training.report import Report
        from nunatak_training.trunk import DiskTrunkStore
    spelt = rows.spelt_in(data)
    compute.prepare()
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        found = find_doubts(
            data,
            compute.backbone(backbone),
            spelt=spelt,
            max_length=max_length,
            trunks=DiskTrunkStore() if cache else None,
            report=Report("doubts", progress),
        )
    tell_rejected(spelt)
    listed = [_row(doubt) for doubt in found]
    if out is not None:
        kept = [{**doubt.others, **row} for doubt, row in zip(found, listed, strict=True)]
        like = dialect_like(Path(data), delimiter=rows.delimiter, escapes_formulas=escape_formulas)
        write_rows("--out", out, kept, like)
    line = f"{counted(len(found), 'example')} in doubt"
    rest = f"; the first {SHOWN} are shown" if len(found) > SHOWN else ""
    print_outcome({"doubts": listed}, _table(found), line + rest, as_json=as_json)


def _row(doubt: "Doubt") -> dict[str, JsonValue]:
    names = ("place", "text", "text_pair", "label", "label_probability")
    return {name: getattr(doubt, name) for name in (*names, "likely_label", "likely_probability")}


def _table(found: "Sequence[Doubt]") -> Table:
    table = plain_table("place", "label", "likely", "text")
    for doubt in found[:SHOWN]:
        label = f"{doubt.label} {doubt.label_probability:.2f}"
        likely = f"{doubt.likely_label} {doubt.likely_probability:.2f}"
        table.add_row(*map(Text, (doubt.place, label, likely, doubt.text[:SHOWN_CHARACTERS])))
    return table
