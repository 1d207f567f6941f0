"""Every kind of index against a plain model: versions, aliases, histories, holds and changes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from doubles.drafts import make_draft
from doubles.postgres import PostgresServer
from doubles.refusals import raises
from nunatak_registry import AliasEventKind, FindingKind, Registry

TASKS = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["prod", "canary"])
RARELY = st.sampled_from([False] * 4 + [True])
LATER = datetime(2100, 1, 1, tzinfo=UTC)
MISSING = [("a", 99), ("gone", 1)]
"""Versions that nobody publishes."""


@dataclass
class TaskModel:
    next_version: int = 1
    versions: dict[int, int] = field(default_factory=dict[int, int])
    """Seed of each version."""
    stacks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Promoted versions of each alias, the current one last."""
    moves: dict[str, list[tuple[AliasEventKind, int | None, int]]] = field(
        default_factory=dict[str, list[tuple[AliasEventKind, int | None, int]]]
    )
    """Every move of each alias: kind, version before and version after."""

    @property
    def aliases(self) -> dict[str, int]:
        return {alias: stack[-1] for alias, stack in self.stacks.items()}

    @property
    def default(self) -> int:
        return self.aliases.get("prod", max(self.versions))


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self, location: str) -> None:
        super().__init__()
        self.location = location
        self.registry = Registry.open(location)
        self.observer = Registry.open(location)
        self.models: dict[str, TaskModel] = {}
        self.changes = self.collected = self.holding = 0
        self.held: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        assert {it.kind for it in self.registry.verify()} <= {FindingKind.ORPHAN}
        self.registry.close()
        self.observer.close()

    @initialize()
    def move_an_alias(self) -> None:
        """A rollback then has somewhere to go, past a deleted version."""
        for version in (1, 2, 3):
            self.publish("a", version)
            self.registry.promote("a", "prod", version)
        self.registry.delete("a", 2)
        model, kind = self.models["a"], AliasEventKind.PROMOTE
        del model.versions[2]
        model.moves["prod"] = [(kind, None, 1), (kind, 1, 2), (kind, 2, 3)]
        model.stacks["prod"] = [1, 2, 3]
        self.changes += 4

    @rule(task=TASKS, seed=st.integers(0, 4))
    def publish(self, task: str, seed: int) -> None:
        model = self.models.setdefault(task, TaskModel())
        known = {other: version for version, other in model.versions.items()}
        draft, blobs = make_draft(task, seed)
        if seed in known:
            draft = draft.model_copy(update={"created_at": LATER})
        manifest = self.registry.publish(draft, blobs)

        if seed in known:
            assert manifest.version == known[seed]
            assert self.registry.publish(manifest, blobs) == manifest
            return
        assert manifest.version == model.next_version
        model.versions[model.next_version] = seed
        model.next_version += 1
        self.changes += 1

    def living(self) -> dict[str, TaskModel]:
        return {task: model for task, model in self.models.items() if model.versions}

    def is_refused_as_stale(
        self, model: TaskModel, alias: str, move: Callable[[int], object]
    ) -> None:
        """Expectations of another version than the current one move nothing."""
        current = model.aliases.get(alias, 0)
        for expected in {0, current + 1} - {current}:
            with raises("alias_conflict") as caught:
                move(expected)
            found = [caught.value.fields[name] for name in ("expected", "actual")]
            assert found == [f"version {it}" if it else "no version" for it in (expected, current)]

    @precondition(lambda self: bool(self.living()))
    @rule(data=st.data(), alias=ALIASES, is_stale=RARELY)
    def promote(self, data: st.DataObject, alias: str, is_stale: bool) -> None:  # noqa: FBT001 - hypothesis passes arguments by name
        task = data.draw(st.sampled_from(sorted(self.living())))
        model = self.models[task]
        version = data.draw(st.sampled_from(sorted(model.versions)))
        current = model.aliases.get(alias, 0)

        if is_stale:
            self.is_refused_as_stale(
                model,
                alias,
                lambda expected: self.registry.promote(
                    task, alias, version, expected_version=expected
                ),
            )
            return
        event = self.registry.promote(task, alias, version, expected_version=current)
        if version != current:
            model.stacks.setdefault(alias, []).append(version)
            moves = model.moves.setdefault(alias, [])
            moves.append((AliasEventKind.PROMOTE, current or None, version))
            self.changes += 1
        assert self.registry.history(task, alias)[-1].to_version == event.to_version
        self.check_history(task, alias)

    @precondition(lambda self: any(model.stacks for model in self.models.values()))
    @rule(data=st.data(), is_stale=RARELY)
    def rollback(self, data: st.DataObject, is_stale: bool) -> None:  # noqa: FBT001 - as above
        task = data.draw(
            st.sampled_from(sorted(name for name, model in self.models.items() if model.stacks))
        )
        model = self.models[task]
        alias = data.draw(st.sampled_from(sorted(model.stacks)))
        stack = model.stacks[alias]
        rest = stack[:-1]
        while rest and (rest[-1] not in model.versions or rest[-1] == stack[-1]):
            rest.pop()

        if is_stale:
            self.is_refused_as_stale(
                model,
                alias,
                lambda expected: self.registry.rollback(task, alias, expected_version=expected),
            )
        elif not rest:
            with raises("no_previous_version"):
                self.registry.rollback(task, alias)
        else:
            event = self.registry.rollback(task, alias)
            assert event.to_version == rest[-1]
            model.moves[alias].append((AliasEventKind.ROLLBACK, stack[-1], rest[-1]))
            model.stacks[alias] = rest
            self.changes += 1
        self.check_history(task, alias)

    def check_history(self, task: str, alias: str) -> None:
        found = self.registry.history(task, alias)
        moves = [(it.kind, it.from_version, it.to_version) for it in found]
        assert moves == self.models[task].moves[alias]
        assert [it.at for it in found] == sorted(it.at for it in found)

    @precondition(lambda self: bool(self.living()))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.living())))
        model = self.models[task]
        version = data.draw(st.sampled_from(sorted(model.versions)))
        pointing = sorted(alias for alias, it in model.aliases.items() if it == version)

        if pointing or (task, version) in self.held:
            with raises("version_in_use") as caught:
                self.registry.delete(task, version)
            assert re.findall(r"alias (\w+)", str(caught.value)) == pointing
            return
        self.registry.delete(task, version)
        del model.versions[version]
        self.changes += 1

    # Most steps change something, because a hold or a collection after another tells nothing new.
    @precondition(lambda self: self.changes > self.holding + 2)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """A hold replaces the hold before it, and passes over what is not there."""
        self.holding = self.changes
        versions = [(task, n) for task, model in self.living().items() for n in model.versions]
        wanted = data.draw(st.sets(st.sampled_from([*versions, *MISSING])))
        self.held = wanted & set(versions)
        self.registry.hold("reader", wanted, seconds=3600)

    @precondition(lambda self: self.changes > self.collected + 2)
    @rule(collects=st.booleans())
    def collect_or_reopen(self, collects: bool) -> None:  # noqa: FBT001 - as above
        self.collected = self.changes
        if collects:
            self.registry.gc(grace_s=0)
            assert self.registry.verify() == []
        else:
            self.registry.close()
            self.registry = Registry.open(self.location)

    @invariant()
    def registry_equals_the_model(self) -> None:
        found = {
            summary.name: (summary.versions, summary.aliases, summary.manifest.version)
            for summary in self.registry.tasks()
        }
        assert found == {
            task: (tuple(sorted(model.versions)), model.aliases, model.default)
            for task, model in self.living().items()
        }
        assert self.observer.generation().number == self.changes

    @invariant()
    def every_reference_means_what_the_model_says(self) -> None:
        for task, model in self.living().items():
            expected = {f"{task}@{alias}": version for alias, version in model.aliases.items()}
            expected |= {f"{task}/{version}": version for version in model.versions}
            expected[task] = model.default
            assert {it: self.registry.resolve(it).version for it in expected} == expected


@pytest.mark.parametrize(("kind", "num_examples"), [("sqlite", 6), ("postgresql", 3)])
def test_the_registry_is_the_model(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, num_examples: int
) -> None:
    numbers = count()
    server: PostgresServer | None = None
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")

    class OfThisKind(RegistryMachine):
        def __init__(self) -> None:
            folder = tmp_path / str(next(numbers))
            if server is None:
                super().__init__(str(folder))
            else:
                super().__init__(f"{server.for_one_test().create_database()}&blobs={folder}")

    limits = settings(
        max_examples=num_examples, stateful_step_count=20, derandomize=True, deadline=None
    )
    run_state_machine_as_test(OfThisKind, settings=limits)
