"""The operations on a registry under torture, and a plain model of their results."""

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from doubles.drafts import make_draft
from nunatak_contract.manifest import TaskDraft
from nunatak_registry import Registry

Kind: TypeAlias = Literal["publish", "promote", "rollback", "delete", "gc"]
KINDS: tuple[Kind, ...] = ("publish", "promote", "rollback", "delete", "gc")
TASKS = ("a", "b")
ALIASES = ("prod", "canary")
NUM_SEEDS = 12
MAX_VERSIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the registry; `number` is the seed of a publish, else a version."""

    kind: Kind
    task: str = "a"
    alias: str = "prod"
    number: int = 0

    def run(self, registry: Registry) -> None:
        match self.kind:
            case "publish":
                registry.publish(*draft_of(self.task, self.number))
            case "promote":
                registry.promote(self.task, self.alias, self.number)
            case "rollback":
                registry.rollback(self.task, self.alias)
            case "delete":
                registry.delete(self.task, self.number)
            case "gc":
                registry.gc(grace_s=0)


@cache
def draft_of(task: str, seed: int) -> tuple[TaskDraft, dict[str, bytes]]:
    """Return `make_draft(task, seed)`, computed once."""
    return make_draft(task, seed)


def digest_of_seed(seed: int) -> str:
    """Return the digest of the blob that a publish of this seed stores."""
    return draft_of("a", seed)[0].blobs[0].sha256


@dataclass
class TaskState:
    """One task: versions with their blobs, the next number, and the stack of every alias."""

    next_version: int = 1
    versions: dict[int, str] = field(default_factory=dict[int, str])
    stacks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    moves: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Every version an alias has pointed to, in order: its history."""


@dataclass
class State:
    """The expected content of a registry. Operations follow the laws of the documents."""

    tasks: dict[str, TaskState] = field(default_factory=lambda: {t: TaskState() for t in TASKS})

    def after(self, operation: Operation) -> "State":
        state = deepcopy(self)
        task = state.tasks[operation.task]
        match operation.kind:
            case "publish":
                digest = digest_of_seed(operation.number)
                if digest not in task.versions.values():
                    task.versions[task.next_version] = digest
                    task.next_version += 1
            case "promote":
                stack = task.stacks.setdefault(operation.alias, [])
                if not stack or stack[-1] != operation.number:
                    stack.append(operation.number)
                    task.moves.setdefault(operation.alias, []).append(operation.number)
            case "rollback":
                rest = rollback_rest(task, operation.alias)
                task.stacks[operation.alias] = rest
                task.moves[operation.alias].append(rest[-1])
            case "delete":
                del task.versions[operation.number]
            case "gc":
                pass
        return state

    def observable(self) -> dict[str, object]:
        return {
            name: (
                dict(sorted(task.versions.items())),
                {alias: stack[-1] for alias, stack in sorted(task.stacks.items())},
                {alias: list(moves) for alias, moves in sorted(task.moves.items())},
            )
            for name, task in self.tasks.items()
            if task.versions
        }

    def choices(self) -> Iterator[Operation]:
        """Yield one valid operation of every possible kind, for every task."""
        for name, task in self.tasks.items():
            held = {stack[-1] for stack in task.stacks.values()}
            free = [version for version in task.versions if version not in held]
            yield from (Operation(kind="delete", task=name, number=version) for version in free)
            for alias in ALIASES:
                yield from (
                    Operation(kind="promote", task=name, alias=alias, number=version)
                    for version in task.versions
                )
                if alias in task.stacks and rollback_rest(task, alias):
                    yield Operation(kind="rollback", task=name, alias=alias)
            if len(task.versions) < MAX_VERSIONS:
                yield from (
                    Operation(kind="publish", task=name, number=seed) for seed in range(NUM_SEEDS)
                )
        yield Operation(kind="gc")


def rollback_rest(task: TaskState, alias: str) -> list[int]:
    """Return the stack of an alias after a rollback; empty if there is no earlier version."""
    stack = task.stacks[alias]
    rest = stack[:-1]
    while rest and (rest[-1] not in task.versions or rest[-1] == stack[-1]):
        rest.pop()
    return rest


def plan(source: random.Random, start: State, length: int) -> list[tuple[Operation, State]]:
    """Return random valid operations, each with the state it leads to."""
    steps, state = list[tuple[Operation, State]](), start
    for _ in range(length):
        options = list(state.choices())
        kinds = sorted({option.kind for option in options})
        kind = source.choice(kinds)
        operation = source.choice([option for option in options if option.kind == kind])
        state = state.after(operation)
        steps.append((operation, state))
    return steps


def observe(registry: Registry) -> dict[str, object]:
    """Return the content of a registry. Every blob is read, so a dangling version raises."""
    seen: dict[str, object] = {}
    for summary in registry.tasks():
        manifests = registry.versions(summary.name)
        for manifest in manifests:
            registry.read_blob(manifest)
        seen[summary.name] = (
            {manifest.version: manifest.blobs[0].sha256 for manifest in manifests},
            dict(sorted(summary.aliases.items())),
            {
                alias: [event.to_version for event in registry.history(summary.name, alias)]
                for alias in sorted(summary.aliases)
            },
        )
    return seen
