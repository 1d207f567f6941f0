"""`nunatak task canary` and `shadow`: versions that run beside an alias."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli.errors import InvalidOptionError
from nunatak_cli.failures import needs_extra
from nunatak_cli.options import BackboneOption, JsonOption, RegistryOption, UnprobedOption
from nunatak_cli.output import console, print_json
from nunatak_cli.registries import existing_registry

if TYPE_CHECKING:
    from nunatak_registry import Candidate, CandidateEvent, CandidateRole, Registry

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the task.")]
AliasOption = Annotated[
    str, typer.Option("--alias", metavar="ALIAS", help="Alias that it runs beside.")
]
VersionOption = Annotated[
    int | None,
    typer.Option("--version", metavar="N", min=1, help="Version to run.", show_default=False),
]
ExpectOption = Annotated[
    int | None,
    typer.Option(
        "--expect",
        metavar="N",
        min=0,
        help="Change only if version N runs there now (0: none does).",
        show_default=False,
    ),
]
EndOption = Annotated[bool, typer.Option("--end", help="End what runs.")]


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
    """Let a version answer a share of an alias's requests, or end that."""
    from nunatak_registry import Candidate, CandidateRole

    role = CandidateRole.CANARY
    if end:
        _refuse_with_end(version, share)
        event = _end(name, alias, role, expect=expect, registry=registry)
    else:
        if version is None or share is None:
            raise InvalidOptionError("name --version and --share, or --end")
        candidate = Candidate(task=name, alias=alias, role=role, version=version, share=share)
        event = _set(
            candidate, expect=expect, backbone=backbone, is_probed=not unprobed, registry=registry
        )
    _show(event, as_json=as_json)


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
            help="Share of the requests, above 0 and up to 1. Absent: all.",
            show_default=False,
        ),
    ] = None,
    end: EndOption = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show how it does on the server named by --server.")
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
    """Run a version unseen beside an alias, see how far it agrees, or end that."""
    from nunatak_registry import Candidate, CandidateRole

    role = CandidateRole.SHADOW
    if report:
        _report(name, alias, server=server, as_json=as_json)
        return
    if end:
        _refuse_with_end(version, share)
        event = _end(name, alias, role, expect=expect, registry=registry)
    else:
        if version is None:
            raise InvalidOptionError("name --version, --report or --end")
        full = 1.0 if share is None else share
        candidate = Candidate(task=name, alias=alias, role=role, version=version, share=full)
        event = _set(
            candidate, expect=expect, backbone=backbone, is_probed=not unprobed, registry=registry
        )
    _show(event, as_json=as_json)


def _refuse_with_end(version: int | None, share: float | None) -> None:
    if version is not None or share is not None:
        raise InvalidOptionError("--end takes neither --version nor --share")


def _set(
    candidate: "Candidate",
    *,
    expect: int | None,
    backbone: str | None,
    is_probed: bool,
    registry: str | None,
) -> "CandidateEvent":
    with existing_registry(registry) as opened:
        if is_probed:
            _prove(opened, candidate, backbone)
        return opened.rollouts.set(candidate, expected_version=expect)


def _prove(registry: "Registry", candidate: "Candidate", backbone: str | None) -> None:
    from nunatak_contract.names import TaskReference

    with needs_extra("server"):
        from nunatak_cli.probing import prove_version
    wanted = TaskReference(task=candidate.task, version=candidate.version)
    prove_version(registry, wanted, source=backbone)


def _end(
    name: str, alias: str, role: "CandidateRole", *, expect: int | None, registry: str | None
) -> "CandidateEvent":
    with existing_registry(registry) as opened:
        return opened.rollouts.end(name, alias, role, expected_version=expect)


def _show(event: "CandidateEvent", *, as_json: bool) -> None:
    from nunatak_cli.views.rollouts import candidate_json, candidate_line

    if as_json:
        print_json(candidate_json(event))
    else:
        console().print(candidate_line(event))


def _report(name: str, alias: str, *, server: str | None, as_json: bool) -> None:
    from nunatak_cli.views.rollouts import report_table
    from nunatak_client import Client

    if server is None:
        raise InvalidOptionError("each server has a report of its own: name one with --server")
    with Client(server) as client:
        found = client.shadow_report(name, alias=alias)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        console().print(report_table(found))
