"""`nunatak task canary` and `shadow`: candidate versions that run next to an alias."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from nunatak_cli import options
from nunatak_cli.output import facts_table, print_outcome, wire_json
from nunatak_cli.registry.registries import existing_registry
from nunatak_cli.registry.verify import ProvingOptions
from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import invalid_option
from nunatak_contract.plain_text import counted
from nunatak_contract.wire import PastCandidate

if TYPE_CHECKING:
    from nunatak_client import ShadowReport
    from nunatak_registry import CandidateEvent


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Share of the requests, above 0 and up to 1. Absent: 1 for a shadow.",
        ),
    ] = None
    end: Annotated[bool, typer.Option("--end", help="End the candidate.")] = False
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="Alias of the candidate.")] = "prod"
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Change only if version N is the candidate now (0: no candidate).",
        ),
    ] = None


CandidateArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/VERSION]",
        help="The candidate version, such as tone/3; the task alone if no candidate starts.",
    ),
]


def canary(
    candidate: CandidateArgument, *, asked: CandidateOptions, proving: ProvingOptions
) -> None:
    """Start a canary, which answers a share of an alias's requests, or end it."""
    if not asked.end and asked.share is None:
        raise invalid_option("a canary needs --share, or --end")
    _change(CandidateRole.CANARY, candidate, asked, proving)


def shadow(
    candidate: CandidateArgument,
    *,
    asked: CandidateOptions,
    report: Annotated[
        bool, typer.Option("--report", help="Show the shadow's report on the server of --server.")
    ] = False,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Address of a server.")] = None,
    proving: ProvingOptions,
) -> None:
    """Start a shadow, which runs without answering, show its report, or end it."""
    if report:
        _report(candidate, asked.alias, server=server, as_json=proving.as_json)
        return
    _change(CandidateRole.SHADOW, candidate, asked, proving)


def _change(
    role: CandidateRole, named: str, asked: CandidateOptions, proving: ProvingOptions
) -> None:
    """Set a candidate of an alias, or end it, and print the change."""
    from nunatak_registry import Candidate

    alias, share = asked.alias, asked.share
    if asked.end and ("/" in named or share is not None):
        raise invalid_option("--end takes the name of the task alone, and no --share")
    name, version = (named, None) if asked.end else options.version_named(named)
    earlier = list["CandidateEvent"]()
    with existing_registry(proving.registry) as opened:
        if version is None:
            event = opened.rollouts.end(name, alias, role, expected_version=asked.expect)
        else:
            proving.prove(opened, name, version)
            earlier = opened.rollouts.history(name, alias)
            full = 1.0 if share is None else share
            candidate = Candidate(task=name, alias=alias, role=role, version=version, share=full)
            event = opened.rollouts.set(candidate, expected_version=asked.expect)
    is_new = event not in earlier
    document = {**wire_json(PastCandidate, event), "changed": is_new}
    print_outcome(document, _candidate_line(event, is_new=is_new), as_json=proving.as_json)


def _report(name: str, alias: str, *, server: str | None, as_json: bool) -> None:
    from nunatak_client import Client

    if server is None:
        raise invalid_option("--report needs --server, because each server has its own report")
    with Client(server) as client:
        found = client.shadow_report(name, alias=alias)
    print_outcome(found.model_dump(mode="json"), _report_table(found), as_json=as_json)


def _candidate_line(event: "CandidateEvent", *, is_new: bool) -> Text:
    from nunatak_registry import CandidateEventKind

    candidate = event.candidate
    name = (f"{candidate.task}@{candidate.alias}", "cyan")
    match event.kind:
        case CandidateEventKind.SET:
            run = f"{candidate.role} version {candidate.version}"
            already = "" if is_new else " already; nothing changed"
            share = f"{candidate.share:.2%} of its requests"
            return Text.assemble(name, f" has {run} on {share}{already}")
        case CandidateEventKind.END:
            return Text.assemble(
                name, f" has no {candidate.role} any more (was version {candidate.version})"
            )


def _report_table(report: "ShadowReport") -> Table:
    bounds = {
        "beyond" if it.up_to is None else f"up to {it.up_to:g}": it.inputs
        for it in report.drift_histogram
    }
    return facts_table(
        {
            "task": f"{report.task}@{report.alias}",
            "answers": f"version {report.version}",
            "shadow": f"version {report.shadow_version} on {report.share:.2%} of requests",
            "compared": counted(report.compared, "input"),
            "agreement": _number(report.agreement),
            "mean drift": _number(report.mean_drift),
            "max drift": _number(report.max_drift),
            **{f"drift {bound}": counted(inputs, "input") for bound, inputs in bounds.items()},
            "errors": counted(report.errors, "input"),
            "dropped": counted(report.dropped, "input"),
        }
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
