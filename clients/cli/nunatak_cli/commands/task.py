"""`nunatak task`: look at the registry, move aliases, check, delete and clean.

`exchange` has the commands that bring versions in and out.
"""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

from typing import Annotated

import typer

from nunatak_cli.commands.exchange import export, import_, pull, push
from nunatak_cli.commands.rollout import canary, shadow
from nunatak_cli.failures import needs_extra
from nunatak_cli.options import (
    AliasOption,
    BackboneOption,
    ExpectOption,
    JsonOption,
    RegistryOption,
    UnprobedOption,
    example,
)
from nunatak_cli.output import console, error_console, print_json, print_text
from nunatak_cli.registries import existing_registry

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the task.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Its number.")]

EXAMPLES = {
    "list": "nunatak task list",
    "show": "nunatak task show tone@prod",
    "diff": "nunatak task diff tone/1 tone@prod",
    "history": "nunatak task history tone --alias prod",
    "promote": "nunatak task promote tone 3 --alias prod --expect 2",
    "rollback": "nunatak task rollback tone --alias prod",
    "canary": "nunatak task canary tone --version 4 --share 0.1",
    "shadow": "nunatak task shadow tone --version 5 --share 0.5",
    "verify": "nunatak task verify --probe",
    "import": "nunatak task import ./finetuned --task tone --backbone bert-base-uncased",
    "export": "nunatak task export tone@prod ./tone --format transformers",
    "push": "nunatak task push tone@prod owner/tone",
    "pull": "nunatak task pull owner/tone --task tone --promote prod",
    "delete": "nunatak task delete tone 1",
    "gc": "nunatak task gc --grace 86400",
}


def task_app() -> typer.Typer:
    """Put the commands of the group together."""
    app = typer.Typer(
        name="task",
        help="Look at tasks and versions, move aliases, exchange, check, delete and clean.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["promote"]),
    )
    commands = {
        "list": list_tasks,
        "show": show,
        "diff": diff,
        "history": history,
        "promote": promote,
        "rollback": rollback,
        "canary": canary,
        "shadow": shadow,
        "verify": verify,
        "import": import_,
        "export": export,
        "push": push,
        "pull": pull,
        "delete": delete,
        "gc": collect,
    }
    for name, command in commands.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def list_tasks(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the tasks with what their bare names serve."""
    from nunatak_cli.views.tasks import summary_json, task_table

    with existing_registry(registry) as opened:
        tasks = opened.tasks()
    if as_json:
        print_json({"tasks": [summary_json(task) for task in tasks]})
    elif tasks:
        console().print(task_table(tasks))
    else:
        error_console().print("no tasks yet; publish one with `nunatak train`")


def show(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="Task: name, name@alias or name/version.")
    ],
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the task card as Markdown.")
    ] = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one version: labels, method, scores, confusion, data and recipe."""
    from nunatak_cli.views.cards import task_card
    from nunatak_registry.cards import task_card as markdown_card

    with existing_registry(registry) as opened:
        manifest = opened.resolve(reference)
        aliases = opened.task(manifest.task).aliases
    if as_json:
        print_json({"aliases": dict(aliases), "manifest": manifest.model_dump(mode="json")})
    elif markdown:
        print_text(markdown_card(manifest))
    else:
        console().print(task_card(manifest, aliases))


def diff(
    left: Annotated[str, typer.Argument(metavar="REF", help="A task: name, name@alias, name/1.")],
    right: Annotated[str, typer.Argument(metavar="REF", help="What to hold against it.")],
    *,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show two versions side by side: method, labels, scores, recipe and sizes."""
    from nunatak_cli.views.comparison import comparison_json, comparison_table
    from nunatak_registry import compare

    with existing_registry(registry) as opened:
        pair = opened.resolve(left), opened.resolve(right)
    rows = compare(*pair)
    if as_json:
        print_json(comparison_json(*pair, rows))
    else:
        console().print(comparison_table(*pair, rows))


def history(
    name: NameArgument,
    *,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias", metavar="ALIAS", help="Only this alias. Absent: all.", show_default=False
        ),
    ] = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every move of a task's aliases, and what ran beside them, oldest first."""
    from nunatak_cli.views.rollouts import candidate_json
    from nunatak_cli.views.tasks import event_json, history_table

    with existing_registry(registry) as opened:
        aliases = opened.task(name).aliases if alias is None else [alias]
        moves = [move for each in aliases for move in opened.history(name, each)]
        changes = [it for each in aliases for it in opened.rollouts.history(name, each)]
    moves.sort(key=lambda move: move.at)
    changes.sort(key=lambda change: change.at)
    if as_json:
        print_json(
            {
                "task": name,
                "events": [event_json(move) for move in moves],
                "candidates": [candidate_json(change) for change in changes],
            }
        )
    elif moves:
        console().print(history_table(moves, changes))
    else:
        error_console().print(f"task {name!r} has no aliases; its newest version is served")


def promote(  # noqa: PLR0913 - one parameter per option is how typer works
    name: NameArgument,
    version: VersionArgument,
    *,
    alias: AliasOption = "prod",
    expect: ExpectOption = None,
    backbone: BackboneOption = None,
    unprobed: UnprobedOption = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Point an alias at a version that runs as recorded; servers follow within moments."""
    from nunatak_cli.views.tasks import event_json, moved_line
    from nunatak_contract.names import TaskReference

    with existing_registry(registry) as opened:
        if not unprobed:
            with needs_extra("server"):
                from nunatak_cli.probing import prove_version
            prove_version(opened, TaskReference(task=name, version=version), source=backbone)
        move = opened.promote(name, alias, version, expected_version=expect)
    if as_json:
        print_json(event_json(move))
    else:
        console().print(moved_line(move))


def rollback(
    name: NameArgument,
    *,
    alias: AliasOption = "prod",
    expect: ExpectOption = None,
    backbone: BackboneOption = None,
    unprobed: UnprobedOption = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Point an alias back at the version before, if that runs; again goes further back."""
    from nunatak_cli.views.tasks import event_json, moved_line
    from nunatak_contract.names import TaskReference

    with existing_registry(registry) as opened:
        if not unprobed:
            with needs_extra("server"):
                from nunatak_cli.probing import prove_version
            # An alias that moves meanwhile would go back to another version than the one proven.
            expect, target = opened.next_rollback(name, alias, expected_version=expect)
            prove_version(opened, TaskReference(task=name, version=target), source=backbone)
        move = opened.rollback(name, alias, expected_version=expect)
    if as_json:
        print_json(event_json(move))
    else:
        console().print(moved_line(move))


def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Only this task. Absent: all.", show_default=False),
    ] = None,
    *,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also run each version and compare with the logits it must give."
        ),
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine", help="Also move damaged files aside; nothing is ever deleted."
        ),
    ] = False,
    backbone: BackboneOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every version is whole: manifest, size, digest; exit 1 if one is not."""
    from nunatak_cli.views.checks import check_json, check_of, check_table

    with existing_registry(registry) as opened:
        checks = [check_of(finding) for finding in opened.verify(name, quarantine=quarantine)]
        if probe:
            with needs_extra("server"):
                from nunatak_cli.probing import probe_versions
            damaged = {check.subject for check in checks}
            checks += probe_versions(opened, name, skipped=damaged, source=backbone)
    errors = sum(check.is_error for check in checks)
    if as_json:
        print_json({"errors": errors, "checks": [check_json(check) for check in checks]})
    elif checks:
        console().print(check_table(checks))
    else:
        console().print("every version is whole")
    if errors:
        raise typer.Exit(1)


def delete(
    name: NameArgument,
    version: VersionArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a version that no alias or server holds; its number is never used again."""
    with existing_registry(registry) as opened:
        reference = opened.resolve(f"{name}/{version}").reference
        if not yes:
            typer.confirm(f"Delete {reference} for good?", abort=True, err=True)
        opened.delete(name, version)
    if as_json:
        print_json({"task": name, "version": version, "deleted": True})
    else:
        console().print(f"deleted {reference}")


def collect(
    *,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Spare what was in use or written within this time; keep it above the longest "
            "load and publish.",
        ),
    ] = 3600.0,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the blobs of deleted versions, and what killed writers left."""
    with existing_registry(registry) as opened:
        collected = opened.gc(grace)
    if as_json:
        print_json(
            {
                "removed_blobs": list(collected.removed_blobs),
                "removed_temporary": collected.removed_temporary,
                "kept_young": collected.kept_young,
            }
        )
    else:
        console().print(
            f"removed {len(collected.removed_blobs)} blobs and "
            f"{collected.removed_temporary} temporary files; {collected.kept_young} too young"
        )
