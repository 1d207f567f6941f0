"""`nunatak policy`: publish, list, show and check policies, which turn answers into decisions."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli.options import JsonOption, RegistryOption, group
from nunatak_cli.output import plain_table, print_json, print_outcome
from nunatak_cli.registry.documents import (
    FileArgument,
    VersionOption,
    print_published,
    read_document,
)
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskManifest
    from nunatak_contract.policies import Condition, Policy
    from nunatak_registry import PublishedPolicy

PolicyArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]


def put(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Publish a policy under its next number. Servers use the newest version at once."""
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        before = opened.policies.numbers().get(policy.name, 0)
        published = opened.policies.put(policy)
    print_published(published, _policy_json(published), before=before, as_json=as_json)


def list_policies(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the policies with their newest versions."""
    with existing_registry(registry) as opened:
        policies = opened.policies.newest()
    table = plain_table("policy", "version", "mode", "on failure", "rules", "tasks")
    for it in policies:
        policy = it.document
        cells = (policy.name, str(it.version), policy.mode.value, policy.on_failure.value)
        table.add_row(*cells, _rules_text(policy), ", ".join(policy.references))
    print_outcome(
        {"policies": [_policy_json(it) for it in policies]},
        table,
        as_json=as_json,
        empty="no policies yet; `nunatak policy put FILE` publishes one",
    )


def show(
    name: PolicyArgument, *, version: VersionOption = None, registry: RegistryOption = None
) -> None:
    """Print a policy as JSON, the newest version or an older one. `policy put` reads it again."""
    with existing_registry(registry) as opened:
        found = opened.policies.get(name, version)
    print_json(found.document.model_dump(mode="json"))


def check(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Check a policy against the tasks of the registry, without publishing it.

    Says how many dev examples each label of a condition would have caught.
    """
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        opened.policies.check(policy)
        manifests = {it: opened.resolve(it) for it in policy.references}
    rows = [
        {"rule": rule.name, "task": manifests[it.task].reference, "label": label}
        | {"threshold": it.threshold, **_caught(it, label, manifests[it.task])}
        for rule in policy.rules
        for it in rule.conditions
        for label in it.labels
    ]
    table = plain_table("rule", "task", "label", "threshold", "dev examples", "caught", "right")
    for row in rows:
        table.add_row(*("-" if it is None else str(it) for it in row.values()))
    line = f"{policy.name}: its tasks can decide every condition"
    remark = "caught: at least so many. -: the version has no record; train it with --calibrate"
    document = {"policy": policy.name, "conditions": rows}
    print_outcome(document, line, table, remark, as_json=as_json)


def _caught(condition: "Condition", label: str, manifest: "TaskManifest") -> dict[str, int | None]:
    """Return what one label of a condition finds in the examples that chose the best epoch."""
    head, calibration, confusion = manifest.head, manifest.calibration, manifest.confusion
    threshold = condition.threshold
    if threshold is None and head.problem_type is ProblemType.MULTI_LABEL:
        threshold = head.threshold(label)
    if threshold is not None and calibration is not None:
        curve = next(it for it in calibration.curves if it.label == label)
        point = curve.at(threshold)
        found, right = (0, 0) if point is None else (point.num_found, point.num_right)
        num_examples = calibration.dev.num_examples
    elif threshold is None and confusion is not None and label in head.labels:
        counts = confusion.counts
        found = sum(count for (_, predicted), count in counts.items() if predicted == label)
        right, num_examples = counts.get((label, label), 0), sum(counts.values())
    else:
        return dict.fromkeys(("num_examples", "num_found", "num_right"))
    return {"num_examples": num_examples, "num_found": found, "num_right": right}


def history(
    name: PolicyArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """List all versions of a policy, the newest first."""
    with existing_registry(registry) as opened:
        versions = opened.policies.history(name)
    table = plain_table("version", "published", "by", "mode", "rules")
    for it in versions:
        at = it.published_at.isoformat(sep=" ", timespec="seconds")
        table.add_row(str(it.version), at, it.by, it.document.mode.value, _rules_text(it.document))
    document = {"versions": [_policy_json(it) for it in versions]}
    print_outcome(document, table, as_json=as_json)


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
        ),
    ] = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish an older version again, under the next number. Servers use the version at once."""
    with existing_registry(registry) as opened:
        before = opened.policies.get(name).version
        published = opened.policies.rollback(name, to)
    print_published(published, _policy_json(published), before=before, as_json=as_json)


def read_policy(path: Path) -> "Policy":
    from nunatak_contract.policies import Policy

    def invalid(place: str, problem: str) -> NunatakError:
        return NunatakError("invalid_policy_file", path=path, place=place, problem=problem)

    return read_document(path, Policy, invalid)


def _rules_text(policy: "Policy") -> str:
    return ", ".join(f"{rule.name} ({rule.action})" for rule in policy.rules)


def _policy_json(published: "PublishedPolicy") -> dict[str, object]:
    from nunatak_contract.wire import PolicyDetail

    return PolicyDetail.model_validate(published).model_dump(mode="json")


policy_app = group(
    "policy",
    "Publish and check policies, which turn the answers of tasks into one decision.",
    {
        "put": (put, "nunatak policy put guard.json"),
        "list": (list_policies, "nunatak policy list"),
        "show": (show, "nunatak policy show guard --version 2 > guard.json"),
        "check": (check, "nunatak policy check guard.yaml"),
        "history": (history, "nunatak policy history guard"),
        "rollback": (rollback, "nunatak policy rollback guard"),
    },
)
