import asyncio
import dataclasses
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from doubles.drafts import make_draft
from doubles.engines import tiny_branch
from doubles.leases import lease, names, settle, use
from doubles.refusals import raises
from doubles.serving import FakeStore, RecordingObserver, make_residency
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_server.errors import TaskDoesNotFitError
from nunatak_server.residency.resident_set import ResidentSet, VersionKey, key_of
from nunatak_versions import LoadedTask

BUDGET = 100
TASKS = "abcdefgh"
NAMES = st.sampled_from(TASKS)


def make_tasks() -> dict[str, LoadedTask]:
    branch = tiny_branch()
    return {
        name: LoadedTask(
            manifest=TaskManifest(**make_draft(name)[0].model_dump(), version=1),
            branch=branch,
            num_bytes=1,
        )
        for name in TASKS
    }


LOADED = make_tasks()


def key(name: str) -> VersionKey:
    """Return the key of a task's only version."""
    return key_of(LOADED[name].manifest)


def put(
    resident_set: ResidentSet, name: str, *, num_bytes: int, load_s: float = 1.0, uses: int = 1
) -> tuple[VersionKey, ...]:
    """Load a version without waiting requests; return the evicted versions."""
    for _ in range(uses):
        resident_set.record_use(key(name))
    assert resident_set.claim(key(name), num_bytes)
    task = dataclasses.replace(LOADED[name], num_bytes=num_bytes)
    before = {key_of(it.manifest) for it in resident_set.resident()}
    resident_set.add(task, load_s=load_s)
    resident_set.release(key(name))
    return tuple(sorted(before - {key_of(it.manifest) for it in resident_set.resident()}))


def tasks_of(resident_set: ResidentSet) -> str:
    return "".join(task.manifest.task for task in resident_set.resident())


@pytest.mark.parametrize(
    ("first", "second"),
    [((50, 1.0, 2), (50, 1.0, 3)), ((50, 0.01, 2), (50, 1.0, 2)), ((80, 1.0, 2), (10, 1.0, 2))],
)
def test_the_version_that_is_missed_least_goes_first(
    first: tuple[int, float, int], second: tuple[int, float, int]
) -> None:
    for order in ("ab", "ba"):
        resident_set = ResidentSet(budget_bytes=BUDGET)
        versions = dict(zip("ab", (first, second), strict=True))
        for name in order:
            num_bytes, load_s, uses = versions[name]
            put(resident_set, name, num_bytes=num_bytes, load_s=load_s, uses=uses)

        assert put(resident_set, "c", num_bytes=50, uses=5) == (key("a"),)


def test_versions_asked_once_displace_one_another_and_not_the_hot_ones() -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    for name in "abcd":
        put(resident_set, name, num_bytes=25, uses=20)

    for name in "efgh":
        put(resident_set, name, num_bytes=25)

    # One place belongs to the last asked version, which must be in memory to answer.
    assert tasks_of(resident_set) == "bcdh"


def test_a_version_that_keeps_being_asked_stays_although_it_went_before() -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    for name in "ab":
        put(resident_set, name, num_bytes=50, uses=3)
    put(resident_set, "c", num_bytes=50)
    put(resident_set, "a", num_bytes=50)
    assert tasks_of(resident_set) == "ab"

    put(resident_set, "c", num_bytes=50, uses=5)
    put(resident_set, "d", num_bytes=50)

    assert tasks_of(resident_set) == "cd"


def test_a_claim_is_refused_while_what_is_in_use_leaves_no_room() -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    put(resident_set, "a", num_bytes=60)
    resident_set.lease(key("a"))

    assert not resident_set.claim(key("b"), 50)
    resident_set.release(key("a"))
    assert resident_set.claim(key("b"), 50)
    assert not resident_set.claim(key("c"), 60)
    resident_set.abandon(key("b"))
    assert resident_set.claim(key("c"), 60)


def test_room_is_refused_only_for_what_could_never_have_it() -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    put(resident_set, "a", num_bytes=60)
    resident_set.lease(key("a"))
    resident_set.check_fits(key("b"), BUDGET)

    resident_set.pin(key("a"))

    with pytest.raises(TaskDoesNotFitError):
        resident_set.check_fits(key("b"), 50)
    resident_set.check_fits(key("b"), 40)
    resident_set.check_fits(key("a"), 60)


def test_bytes_of_a_task_sum_its_versions_and_go_with_the_last() -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    for version, num_bytes in ((1, 30), (2, 20)):
        manifest = LOADED["a"].manifest.model_copy(update={"version": version})
        task = dataclasses.replace(LOADED["a"], manifest=manifest, num_bytes=num_bytes)
        resident_set.claim(key_of(manifest), num_bytes)
        resident_set.add(task, load_s=1.0)
        resident_set.release(key_of(manifest))

    seen = resident_set.task_bytes()
    resident_set.evict("a", 1)
    assert resident_set.task_bytes() == {"a": 20}
    resident_set.evict("a", 2)
    assert resident_set.task_bytes() == {}
    # A reader on another thread sees the state of one moment.
    assert seen == {"a": 50}


@pytest.mark.parametrize("is_pinned_again", [False, True])
def test_a_version_that_is_discarded_goes_with_its_last_lease_unless_it_is_pinned_again(
    *, is_pinned_again: bool
) -> None:
    resident_set = ResidentSet(budget_bytes=BUDGET)
    put(resident_set, "a", num_bytes=10)
    resident_set.pin(key("a"))
    resident_set.lease(key("a"))

    resident_set.discard(key("a"))
    assert (tasks_of(resident_set), resident_set.is_pinned(key("a"))) == ("a", False)
    if is_pinned_again:
        resident_set.pin(key("a"))
    resident_set.release(key("a"))

    assert tasks_of(resident_set) == "a" * is_pinned_again


class ResidentSetInUse(RuleBasedStateMachine):
    """Any sequence of calls on a resident set."""

    def __init__(self) -> None:
        super().__init__()
        self.told: set[VersionKey] = set()
        """The versions in memory, by the recorded additions and evictions."""
        self.resident_set = ResidentSet(budget_bytes=BUDGET, on_evict=self.told.remove)
        self.claims: dict[VersionKey, int] = {}
        self.leases: list[VersionKey] = []
        self.pins: set[VersionKey] = set()

    @rule(name=NAMES, num_bytes=st.integers(min_value=1, max_value=60))
    def claim(self, name: str, num_bytes: int) -> None:
        is_new = self.resident_set.get(key(name)) is None and key(name) not in self.claims
        if is_new and self.resident_set.claim(key(name), num_bytes):
            self.claims[key(name)] = num_bytes

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), load_s=st.sampled_from((0.01, 1.0)))
    def place(self, data: st.DataObject, load_s: float) -> None:
        claimed = data.draw(st.sampled_from(sorted(self.claims)))
        task = dataclasses.replace(LOADED[claimed.task], num_bytes=self.claims.pop(claimed))
        self.told.add(claimed)
        self.resident_set.add(task, load_s=load_s)
        self.leases.append(claimed)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        claimed = data.draw(st.sampled_from(sorted(self.claims)))
        del self.claims[claimed]
        self.resident_set.abandon(claimed)

    @rule(name=NAMES)
    def lease(self, name: str) -> None:
        if self.resident_set.lease(key(name)) is not None:
            self.resident_set.record_use(key(name))
            self.leases.append(key(name))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        self.leases.remove(leased)
        self.resident_set.release(leased)

    @rule(name=NAMES)
    def pin(self, name: str) -> None:
        if self.resident_set.get(key(name)) is not None:
            self.resident_set.pin(key(name))
            self.pins.add(key(name))

    @rule(name=NAMES)
    def unpin(self, name: str) -> None:
        self.resident_set.unpin(name, None)
        self.pins.discard(key(name))

    @rule(name=NAMES)
    def discard(self, name: str) -> None:
        self.resident_set.discard(key(name))
        self.pins.discard(key(name))
        assert not self.resident_set.is_pinned(key(name))
        assert (key(name) in self.told) == (key(name) in self.leases)

    @rule(name=NAMES)
    def evict(self, name: str) -> None:
        try:
            self.resident_set.evict(name, None)
        except NunatakError as error:
            refusal = error.code
        else:
            return
        is_pinned = self.resident_set.is_pinned(key(name))
        assert {"task_in_use": key(name) in self.leases, "task_pinned": is_pinned}[refusal]

    @invariant()
    def what_is_in_use_or_pinned_is_there(self) -> None:
        assert self.pins.union(self.leases) <= {
            key_of(task.manifest) for task in self.resident_set.resident()
        }

    @invariant()
    def the_bytes_add_up(self) -> None:
        stats, held = self.resident_set.stats(), self.resident_set.resident()
        assert stats.bytes == sum(task.num_bytes for task in held)
        assert stats.loading_bytes == sum(self.claims.values())
        assert self.resident_set.task_bytes() == {
            task.manifest.task: task.num_bytes for task in held
        }

    @invariant()
    def what_went_was_told(self) -> None:
        assert {key_of(task.manifest) for task in self.resident_set.resident()} == self.told

    @invariant()
    def only_what_cannot_go_passes_the_budget(self) -> None:
        if self.resident_set.stats().bytes > BUDGET:
            keys = {key_of(task.manifest) for task in self.resident_set.resident()}
            assert all(it in self.leases or self.resident_set.is_pinned(it) for it in keys)


ResidentSetInUse.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestResidentSetInUse = ResidentSetInUse.TestCase


async def test_evicting_a_task_drops_all_its_versions_or_none(store: FakeStore) -> None:
    observer = RecordingObserver()
    residency = make_residency(store, observer=observer)
    reference = store.add("tone", version=1)
    first, second = [await lease(residency, store, reference) for _ in range(2)]
    store.add("tone", version=2)
    await use(residency, store, TaskReference(task="tone", version=2), store.add("other"))

    with raises("task_in_use", match="tone/1.*2 requests"):
        residency.evict("tone")
    assert len(residency.resident()) == 3
    for _ in range(2):
        first.release()
    with raises("task_in_use", match="1 request"):
        residency.evict("tone")
    second.release()
    assert residency.evict("tone", 2) == (2,)
    assert residency.evict("tone", 2) == ()
    assert residency.evict("tone") == (1,)
    assert residency.lease_resident(store.manifests[reference]) is None
    assert names(residency) == ["other/1"]
    assert observer.evicted == ["tone", "tone"]


async def test_more_versions_than_fit_are_served_one_after_the_other(store: FakeStore) -> None:
    observer = RecordingObserver()
    residency = make_residency(store, room_for=3, observer=observer)
    references = [store.add(f"task-{index}") for index in range(12)]
    peak = 0

    async def ask(reference: TaskReference) -> None:
        nonlocal peak
        leased = await lease(residency, store, reference)
        peak = max(peak, len(residency.resident()))
        await asyncio.sleep(0)
        leased.release()

    await asyncio.gather(*(ask(each) for each in references * 3))

    assert peak <= 3
    assert len(residency.resident()) <= 3
    came = Counter(task for task, _ in observer.loads)
    stayed = Counter(task.manifest.task for task in residency.resident())
    assert came == stayed + Counter(observer.evicted)
    assert residency.task_bytes().keys() == stayed.keys()


async def test_at_the_end_a_load_that_waits_is_refused_and_one_that_hangs_is_left(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nunatak_server.residency.residency.LAST_LOADS_S", 0.01)
    residency = make_residency(store, room_for=1)
    store.may_load.clear()
    hanging = asyncio.create_task(lease(residency, store, store.add("hangs")))
    waiting = asyncio.create_task(lease(residency, store, store.add("cold")))
    await settle()

    async with asyncio.timeout(10):
        await residency.aclose()

    with raises("draining"):
        await waiting
    store.may_load.set()
    (await hanging).release()


async def test_a_version_just_preloaded_is_not_the_first_to_go(store: FakeStore) -> None:
    residency = make_residency(store, room_for=2)
    await residency.preload(store.manifests[store.add("new")])
    await residency.preload(store.manifests[store.add("new")])
    await use(residency, store, store.add("one"), store.add("two"), store.add("three"))

    assert "new/1" in names(residency)


async def test_a_version_that_can_never_fit_is_refused_with_what_it_needs(store: FakeStore) -> None:
    residency = make_residency(store, room_for=0)

    with pytest.raises(TaskDoesNotFitError) as refusal:
        await lease(residency, store, store.add("huge"))

    assert refusal.value.fields["needed_bytes"] == store.branch.num_bytes
    assert refusal.value.fields["budget_bytes"] == 0
    assert store.loaded == []


async def test_a_load_that_waits_is_refused_when_its_room_is_pinned(store: FakeStore) -> None:
    residency = make_residency(store, room_for=1)
    reference = store.add("used")
    used = await lease(residency, store, reference)
    waiting = asyncio.create_task(lease(residency, store, store.add("cold")))
    await settle()

    await residency.pin(store.manifests[reference])
    used.release()

    with pytest.raises(TaskDoesNotFitError):
        await waiting
