"""The registry against a plain model."""

import tempfile
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from doubles.drafts import make_draft
from doubles.refusals import raises
from nunatak_registry.store import Registry
from nunatak_registry.upkeep import FindingKind

TASKS = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["prod", "canary"])


@dataclass
class TaskModel:
    next_version: int = 1
    versions: dict[int, int] = field(default_factory=dict[int, int])
    """Seed of each version."""
    stacks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Promoted versions of each alias, the current one last."""

    @property
    def aliases(self) -> dict[str, int]:
        return {alias: stack[-1] for alias, stack in self.stacks.items()}

    @property
    def default(self) -> int:
        return self.aliases.get("prod", max(self.versions))


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.registry = Registry.open(self.folder.name)
        self.models: dict[str, TaskModel] = {}
        self.changes = 0
        self.held: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        self.registry.close()
        self.folder.cleanup()

    @rule(task=TASKS, seed=st.integers(0, 4))
    def publish(self, task: str, seed: int) -> None:
        model = self.models.setdefault(task, TaskModel())
        known = {other: version for version, other in model.versions.items()}
        manifest = self.registry.publish(*make_draft(task, seed))

        if seed in known:
            assert manifest.version == known[seed]
            return
        assert manifest.version == model.next_version
        model.versions[model.next_version] = seed
        model.next_version += 1
        self.changes += 1

    def living(self) -> dict[str, TaskModel]:
        return {task: model for task, model in self.models.items() if model.versions}

    @precondition(lambda self: bool(self.living()))
    @rule(data=st.data(), alias=ALIASES, is_stale=st.booleans())
    def promote(self, data: st.DataObject, alias: str, is_stale: bool) -> None:  # noqa: FBT001 - hypothesis passes arguments by name
        task = data.draw(st.sampled_from(sorted(self.living())))
        model = self.models[task]
        version = data.draw(st.sampled_from(sorted(model.versions)))
        current = model.aliases.get(alias, 0)

        if is_stale:
            with raises("alias_conflict"):
                self.registry.promote(task, alias, version, expected_version=current + 1)
            return
        self.registry.promote(task, alias, version, expected_version=current)
        if version != current:
            model.stacks.setdefault(alias, []).append(version)
            self.changes += 1

    @precondition(lambda self: any(model.stacks for model in self.models.values()))
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        task = data.draw(
            st.sampled_from(sorted(name for name, model in self.models.items() if model.stacks))
        )
        model = self.models[task]
        alias = data.draw(st.sampled_from(sorted(model.stacks)))
        stack = model.stacks[alias]
        rest = stack[:-1]
        while rest and (rest[-1] not in model.versions or rest[-1] == stack[-1]):
            rest.pop()

        if not rest:
            with raises("no_previous_version"):
                self.registry.rollback(task, alias)
            return
        assert self.registry.rollback(task, alias).to_version == rest[-1]
        model.stacks[alias] = rest
        self.changes += 1

    @precondition(lambda self: bool(self.living()))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.living())))
        model = self.models[task]
        version = data.draw(st.sampled_from(sorted(model.versions)))

        if version in model.aliases.values() or (task, version) in self.held:
            with raises("version_in_use"):
                self.registry.delete(task, version)
            return
        self.registry.delete(task, version)
        del model.versions[version]
        self.changes += 1

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        versions = [(task, n) for task, model in self.living().items() for n in model.versions]
        self.held = data.draw(st.sets(st.sampled_from(versions))) if versions else set()
        self.registry.hold("reader", self.held, seconds=3600)

    @rule()
    def collect(self) -> None:
        self.registry.gc(grace_s=0)
        assert self.registry.verify() == []

    @rule()
    def reopen(self) -> None:
        self.registry.close()
        self.registry = Registry.open(self.folder.name)

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
        assert self.registry.generation().number == self.changes

    @invariant()
    def every_version_is_sound(self) -> None:
        kinds = {finding.kind for finding in self.registry.verify()}
        assert kinds <= {FindingKind.ORPHAN}


TestRegistryModel = RegistryMachine.TestCase
TestRegistryModel.settings = settings(
    max_examples=15, stateful_step_count=20, derandomize=True, deadline=None
)
