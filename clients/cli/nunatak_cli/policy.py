"""`nunatak policy`: publish, list, show and check policies, which turn answers into decisions."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, ValidationError
from rich.table import Table

from nunatak_cli.options import JsonOption, RegistryOption, example
from nunatak_cli.output import console, error_console, print_json
from nunatak_cli.registries import existing_registry, published_line
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_contract.policies import Policy
    from nunatak_registry import PublishedPolicy

EXAMPLES = {
    "put": "nunatak policy put guard.json",
    "list": "nunatak policy list",
    "show": "nunatak policy show guard --version 2 > guard.json",
    "check": "nunatak policy check guard.yaml",
    "history": "nunatak policy history guard",
    "rollback": "nunatak policy rollback guard",
}

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The policy: FILE.json, FILE.yaml or FILE.toml.")
]
PolicyArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]


def policy_app() -> typer.Typer:
    """Return the group with its commands."""
    app = typer.Typer(
        name="policy",
        help="Publish and check policies, which turn the answers of tasks into one decision.",
        no_args_is_help=True,
        epilog=example(EXAMPLES["put"]),
    )
    commands = {
        "put": put,
        "list": list_policies,
        "show": show,
        "check": check,
        "history": history,
        "rollback": rollback,
    }
    for name, command in commands.items():
        app.command(name, epilog=example(EXAMPLES[name]))(command)
    return app


def put(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Publish a policy under its next number. Servers use the newest version at once."""
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        before = opened.policies.numbers().get(policy.name, 0)
        published = opened.policies.put(policy)
    is_new = published.version > before
    if as_json:
        print_json({**_policy_json(published), "changed": is_new})
    else:
        console().print(published_line(published.reference, is_new=is_new))


def list_policies(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the policies with their newest versions."""
    with existing_registry(registry) as opened:
        policies = opened.policies.newest()
    if as_json:
        print_json({"policies": [_policy_json(it) for it in policies]})
    elif not policies:
        error_console().print("no policies yet; `nunatak policy put FILE` publishes one")
    else:
        table = Table("policy", "version", "mode", "on failure", "rules", "tasks", box=None)
        for it in policies:
            policy = it.policy
            rules = ", ".join(f"{rule.name} ({rule.action})" for rule in policy.rules)
            cells = (policy.name, str(it.version), policy.mode.value, policy.on_failure.value)
            table.add_row(*cells, rules, ", ".join(policy.references))
        console().print(table)


def show(
    name: PolicyArgument,
    *,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="N", min=1, help="Number of the version.", show_default=False
        ),
    ] = None,
    registry: RegistryOption = None,
) -> None:
    """Print a policy as JSON, the newest version or an older one. `policy put` reads it again."""
    with existing_registry(registry) as opened:
        found = opened.policies.get(name, version)
    print_json(found.policy.model_dump(mode="json"))


def check(file: FileArgument, *, registry: RegistryOption = None) -> None:
    """Check a policy against the tasks of the registry, without publishing it."""
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        opened.policies.check(policy)
    console().print(f"{policy.name}: its tasks can decide every condition")


def history(
    name: PolicyArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """List all versions of a policy, the newest first."""
    with existing_registry(registry) as opened:
        versions = opened.policies.history(name)
    if as_json:
        print_json({"versions": [_policy_json(it) for it in versions]})
    else:
        table = Table("version", "published", "by", "mode", "rules", box=None)
        for it in versions:
            rules = ", ".join(f"{rule.name} ({rule.action})" for rule in it.policy.rules)
            at = it.published_at.isoformat(sep=" ", timespec="seconds")
            table.add_row(str(it.version), at, it.by, it.policy.mode.value, rules)
        console().print(table)


def rollback(
    name: PolicyArgument,
    *,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="N",
            min=1,
            help="Number of the version to repeat. Absent: the version before the newest.",
            show_default=False,
        ),
    ] = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish an older version again, under the next number. Servers use the version at once."""
    with existing_registry(registry) as opened:
        before = opened.policies.get(name).version
        published = opened.policies.rollback(name, to)
    is_new = published.version > before
    if as_json:
        print_json({**_policy_json(published), "changed": is_new})
    else:
        console().print(published_line(published.reference, is_new=is_new))


def read_policy(path: Path) -> "Policy":
    """Return the policy in a file.

    Raises:
        NunatakError: `invalid_policy_file`, the file does not exist, or breaks the format; the
            message names the place.
    """
    from nunatak_contract.policies import Policy

    try:
        return Policy.model_validate(_content(path))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        message = problem["msg"].removeprefix("Value error, ")
        raise NunatakError(
            "invalid_policy_file", path=path, place=place, problem=message
        ) from error
    except ValueError as error:
        raise NunatakError(
            "invalid_policy_file", path=path, place="file", problem=str(error)
        ) from error


def _content(path: Path) -> object:
    if path.suffix.lower() != ".json":
        with needs_extra("training"):
            from nunatak_training.settings import read_mapping
        return read_mapping(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} stands twice")
    return dict(pairs)


def _policy_json(published: "PublishedPolicy") -> dict[str, JsonValue]:
    from nunatak_contract.wire import PolicyDetail

    return PolicyDetail.model_validate(published).model_dump(mode="json")
