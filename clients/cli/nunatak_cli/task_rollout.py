"""`nunatak task canary` and `shadow`: candidate versions that run next to an alias."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_cli.options import (
    BackboneOption,
    JsonOption,
    NameArgument,
    RegistryOption,
    UnprobedOption,
)
from nunatak_cli.output import console, print_json
from nunatak_cli.registries import existing_registry
from nunatak_cli.task_verify import prove_version
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_client import ShadowReport
    from nunatak_registry import Candidate, CandidateEvent, CandidateRole

AliasOption = Annotated[
    str, typer.Option("--alias", metavar="ALIAS", help="Alias of the candidate.")
]
VersionOption = Annotated[
    int | None,
    typer.Option(
        "--version", metavar="N", min=1, help="Number of the candidate version.", show_default=False
    ),
]
ExpectOption = Annotated[
    int | None,
    typer.Option(
        "--expect",
        metavar="N",
        min=0,
        help="Change only if version N is the candidate now (0: no candidate).",
        show_default=False,
    ),
]
EndOption = Annotated[bool, typer.Option("--end", help="End the candidate.")]


def canary(  # noqa: PLR0913 - one parameter per option is how typer works
    name: NameArgument,
    *,
    version: VersionOption = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Share of the requests, above 0 and up to 1.",
            show_default=False,
        ),
    ] = None,
    end: EndOption = False,
    alias: AliasOption = "prod",
    expect: ExpectOption = None,
    backbone: BackboneOption = None,
    unprobed: UnprobedOption = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a canary, which answers a share of an alias's requests, or end it."""
    from nunatak_registry import Candidate, CandidateRole

    role, is_new = CandidateRole.CANARY, True
    if end:
        _refuse_with_end(version, share)
        event = _end(name, alias, role, expect=expect, registry=registry)
    else:
        if version is None or share is None:
            raise NunatakError(
                "invalid_option", problem="a canary needs --version and --share, or --end"
            )
        candidate = Candidate(task=name, alias=alias, role=role, version=version, share=share)
        event, is_new = _set(
            candidate, expect=expect, backbone=backbone, is_probed=not unprobed, registry=registry
        )
    _show(event, is_new=is_new, as_json=as_json)


def shadow(  # noqa: PLR0913 - one parameter per option is how typer works
    name: NameArgument,
    *,
    version: VersionOption = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Share of the requests, above 0 and up to 1. Absent: 1.",
            show_default=False,
        ),
    ] = None,
    end: EndOption = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show the shadow's report on the server of --server.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Address of a server.", show_default=False),
    ] = None,
    alias: AliasOption = "prod",
    expect: ExpectOption = None,
    backbone: BackboneOption = None,
    unprobed: UnprobedOption = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a shadow, which runs without answering, show its report, or end it."""
    from nunatak_registry import Candidate, CandidateRole

    role, is_new = CandidateRole.SHADOW, True
    if report:
        _report(name, alias, server=server, as_json=as_json)
        return
    if end:
        _refuse_with_end(version, share)
        event = _end(name, alias, role, expect=expect, registry=registry)
    else:
        if version is None:
            raise NunatakError(
                "invalid_option", problem="a shadow needs --version, --report or --end"
            )
        full = 1.0 if share is None else share
        candidate = Candidate(task=name, alias=alias, role=role, version=version, share=full)
        event, is_new = _set(
            candidate, expect=expect, backbone=backbone, is_probed=not unprobed, registry=registry
        )
    _show(event, is_new=is_new, as_json=as_json)


def _refuse_with_end(version: int | None, share: float | None) -> None:
    if version is not None or share is not None:
        raise NunatakError("invalid_option", problem="--end excludes --version and --share")


def _set(
    candidate: "Candidate",
    *,
    expect: int | None,
    backbone: str | None,
    is_probed: bool,
    registry: str | None,
) -> tuple["CandidateEvent", bool]:
    """Set a candidate; also return whether this call changed it."""
    with existing_registry(registry) as opened:
        if is_probed:
            prove_version(opened, candidate.task, candidate.version, source=backbone)
        earlier = opened.rollouts.history(candidate.task, candidate.alias)
        event = opened.rollouts.set(candidate, expected_version=expect)
    return event, event not in earlier


def _end(
    name: str, alias: str, role: "CandidateRole", *, expect: int | None, registry: str | None
) -> "CandidateEvent":
    with existing_registry(registry) as opened:
        return opened.rollouts.end(name, alias, role, expected_version=expect)


def _show(event: "CandidateEvent", *, is_new: bool, as_json: bool) -> None:
    if as_json:
        print_json({**candidate_json(event), "changed": is_new})
    else:
        console().print(_candidate_line(event, is_new=is_new))


def _report(name: str, alias: str, *, server: str | None, as_json: bool) -> None:
    from nunatak_client import Client

    if server is None:
        raise NunatakError(
            "invalid_option",
            problem="--report needs --server, because each server has its own report",
        )
    with Client(server) as client:
        found = client.shadow_report(name, alias=alias)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        console().print(_report_table(found))


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


def candidate_json(event: "CandidateEvent") -> dict[str, JsonValue]:
    from nunatak_contract.wire import PastCandidate

    return PastCandidate.model_validate(event).model_dump(mode="json")


def _report_table(report: "ShadowReport") -> Table:
    """Return the agreement of a shadow with the version that answers, and its drift."""
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
