"""`nunatak task verify`: check stored versions; promotion runs the same check on its version."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nunatak_cli.options import JsonOption, RegistryOption, VersionBackboneOption
from nunatak_cli.output import plain_table, print_outcome
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_registry import Finding, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding; with `is_error` no server can serve the version."""

    subject: str
    kind: str
    is_error: bool
    message: str


def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this task. Absent: all tasks.")
    ] = None,
    *,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also run each version and compare with its recorded logits."),
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine", help="Also move damaged files to a quarantine folder; none is deleted."
        ),
    ] = False,
    backbone: VersionBackboneOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check manifest, size and digest of every version; exit 1 if a version is damaged."""
    with existing_registry(registry) as opened:
        checks = [_check_of(finding) for finding in opened.verify(name, quarantine=quarantine)]
        if probe:
            damaged = {check.subject for check in checks}
            checks += _failed_probes(opened, name, skipped=damaged, source=backbone)
    errors = sum(check.is_error for check in checks)
    shown = _check_table(checks) if checks else "every version is whole"
    print_outcome({"errors": errors, "checks": checks}, shown, as_json=as_json)
    if errors:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class ProvingOptions:
    backbone: VersionBackboneOption = None
    unprobed: Annotated[
        bool,
        typer.Option(
            "--unprobed", help="Skip the probe of the version, if its backbone is not available."
        ),
    ] = False
    registry: RegistryOption = None
    as_json: JsonOption = False

    def prove(self, opened: "Registry", task: str, version: int) -> None:
        if self.unprobed:
            return
        with needs_extra("server"):
            from nunatak_contract.names import TaskReference
            from nunatak_model import load_backbone, source_of
            from nunatak_versions import load_task

        manifest = opened.resolve(TaskReference(task=task, version=version))
        data = opened.read_blob(manifest)
        loaded = load_backbone(self.backbone or source_of(manifest.backbone.name))
        load_task(manifest, data, loaded)


def _failed_probes(
    registry: "Registry", task: str | None, *, skipped: Collection[str], source: str | None
) -> Iterator[Check]:
    """Load every version except `skipped` as a server does, and yield the failures."""
    with needs_extra("server"):
        from nunatak_model import DEFAULT_BACKBONE, load_backbone, source_of
        from nunatak_versions import load_task

    loaded = cache(load_backbone)
    if source is not None:
        loaded(source)
    names = registry.names() if task is None else [task]
    for manifest in (it.manifest for name in names for it in registry.listed_versions(name)):
        if manifest is None or manifest.reference in skipped:
            continue
        subject, own = manifest.reference, manifest.backbone
        recorded = source_of(own.name)
        try:
            backbone = loaded(source or recorded)
            if own.digest != backbone.digest and recorded != DEFAULT_BACKBONE:
                backbone = loaded(recorded)
            if own.digest != backbone.digest:
                message = f"trained on backbone {own.name!r}; name that with --backbone"
                yield Check(subject=subject, kind="not_probed", is_error=False, message=message)
                continue
            load_task(manifest, registry.read_blob(manifest), backbone)
        except NunatakError as error:
            yield Check(subject=subject, kind=error.code, is_error=True, message=str(error))


def _check_of(finding: "Finding") -> Check:
    moved = f"; moved to {finding.moved_to}" if finding.moved_to is not None else ""
    return Check(
        subject=finding.subject,
        kind=finding.kind.value,
        is_error=finding.kind.is_error,
        message=finding.message + moved,
    )


def _check_table(checks: Iterable[Check]) -> Table:
    table = plain_table()
    table.add_column("where", no_wrap=True, max_width=40)
    table.add_column("what", no_wrap=True)
    table.add_column("message")
    for check in checks:
        style = "red" if check.is_error else "dim"
        table.add_row(check.subject, check.kind, check.message, style=style)
    return table
