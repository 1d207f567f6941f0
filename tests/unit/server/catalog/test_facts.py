"""What a process remembers of its registry, and what it must forget."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import pytest

from doubles.drafts import CREATED_AT
from doubles.leases import settle
from doubles.policies import make_policy, make_rule, when
from doubles.refusals import raises
from doubles.serving import FakeStore, make_facts
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_registry import PublishedPolicy, StoreUnavailableError, Traffic
from nunatak_server.access.keys import ALL_TASKS, TaskList
from nunatak_server.catalog.catalog import MAX_UNASKED, Found, KnownFacts


async def version_of(facts: KnownFacts, reference: TaskReference, caller: str = "ann") -> int:
    found = (await facts.traffic([reference], caller))[reference]
    return 0 if isinstance(found, NunatakError) else found.manifest.version


@pytest.mark.parametrize("version", [1, 0], ids=["task", "no-task"])
async def test_a_reference_is_looked_up_once_until_the_registry_changes(
    store: FakeStore, version: int
) -> None:
    reference, facts = TaskReference(task="tone"), make_facts(store)
    if version:
        store.add("tone", version)
    assert [await version_of(facts, reference) for _ in range(2)] == [version] * 2
    assert store.num_resolved == 1

    store.add("tone", version=2)
    await facts.renew()

    assert await version_of(facts, reference) == 2
    assert store.num_resolved == 2


async def test_many_requests_of_one_caller_share_a_look_up(store: FakeStore) -> None:
    references, facts = [store.add(f"t{i}") for i in range(8)], make_facts(store)

    await asyncio.gather(*(version_of(facts, references[i % 8]) for i in range(200)))

    assert store.num_resolved == 8


async def test_the_names_of_a_request_are_looked_up_together(store: FakeStore) -> None:
    calls = list[int]()

    async def look_up(
        references: Collection[TaskReference], _caller: str | None
    ) -> Found[TaskReference, Traffic]:
        calls.append(len(references))
        return {it: await store.resolve(it) for it in references}

    facts = make_facts(store, traffic=look_up)
    references = [store.add(f"t{i}") for i in range(64)]
    await facts.traffic(references[:10], "ann")

    found = await facts.traffic(references, "ann")

    assert list(map(len, (found, store.loaded))) == [64, 0]
    assert calls == [10, 54]


async def test_an_outage_is_not_remembered(store: FakeStore) -> None:
    reference, facts = store.add("tone"), make_facts(store)
    store.is_down = True
    with pytest.raises(StoreUnavailableError):
        await version_of(facts, reference)

    store.is_down = False

    assert await version_of(facts, reference) == 1


async def test_while_a_change_cannot_be_looked_up_requests_get_what_was_known(
    store: FakeStore,
) -> None:
    reference, facts = store.add("tone", version=1), make_facts(store)
    await version_of(facts, reference)
    store.add("tone", version=2)
    store.is_down = True

    with pytest.raises(StoreUnavailableError):
        await facts.renew()
    assert await version_of(facts, reference) == 1
    store.is_down = False
    await facts.renew()

    assert await version_of(facts, reference) == 2


async def test_a_renewal_looks_up_only_what_was_asked_for_since_the_last_ones(
    store: FakeStore,
) -> None:
    """An outage after some changes takes no quiet task; a task that nobody asks for costs none."""
    references, facts = [store.add(f"t{i}") for i in range(8)], make_facts(store)
    for reference in references:
        await version_of(facts, reference)
    for change in range(MAX_UNASKED):
        await facts.renew()
        assert store.num_resolved == 8 * (change + 2)
        await version_of(facts, references[0])

    await facts.renew()

    assert store.num_resolved == 8 * (MAX_UNASKED + 1) + 1
    assert [facts.known(it) is not None for it in references] == [True] + [False] * 7


async def test_a_stream_of_names_displaces_no_reference_in_use(store: FakeStore) -> None:
    reference, facts = store.add("tone"), make_facts(store, max_known=4)
    await version_of(facts, reference)

    for number in range(50):
        await version_of(facts, store.add(f"t{number}"))
        await version_of(facts, TaskReference(task=f"no-{number}"))
        assert facts.known(reference) is not None

    assert store.num_resolved == 101
    assert sum(facts.known(TaskReference(task=f"t{it}")) is not None for it in range(50)) <= 8


@pytest.mark.parametrize("forget", [KnownFacts.renew, KnownFacts.invalidate])
async def test_an_answer_from_before_a_change_is_not_kept(
    store: FakeStore, forget: Callable[[KnownFacts], Awaitable[None] | None]
) -> None:
    reference, facts = store.add("tone", version=1), make_facts(store)
    store.may_resolve.clear()
    old = asyncio.create_task(version_of(facts, reference))
    await store.is_resolving.wait()

    store.add("tone", version=2)
    done = forget(facts)
    if done is not None:
        await done
    young = asyncio.create_task(version_of(facts, reference))
    await settle()
    store.may_resolve.set()

    assert (await old, await young) == (1, 2)
    assert await version_of(facts, reference) == 2


async def test_what_a_renewal_read_before_a_lapse_is_not_kept(store: FakeStore) -> None:
    reference, facts = store.add("tone", version=1), make_facts(store)
    await version_of(facts, reference)
    store.may_resolve.clear()
    renewal = asyncio.create_task(facts.renew())
    await settle()

    store.add("tone", version=2)
    facts.invalidate()
    store.may_resolve.set()
    await renewal

    assert await version_of(facts, reference) == 2


async def test_a_request_that_gives_up_takes_the_look_up_from_no_other(store: FakeStore) -> None:
    reference, facts = store.add("tone"), make_facts(store)
    store.may_resolve.clear()
    first, second = (asyncio.create_task(version_of(facts, reference)) for _ in range(2))
    await settle()

    first.cancel()
    await settle()
    store.may_resolve.set()

    assert await second == 1


async def test_a_caller_does_not_wait_for_the_look_up_of_another(store: FakeStore) -> None:
    """The look-up of another caller may wait for its turn behind thousands."""
    reference, facts = store.add("tone"), make_facts(store)
    store.may_resolve.clear()
    early = asyncio.create_task(version_of(facts, reference, "a caller with many names"))
    await settle()
    late = asyncio.create_task(version_of(facts, reference, "ann"))
    await settle()

    assert store.num_resolved == 2
    store.may_resolve.set()
    assert (await early, await late) == (1, 1)


async def test_a_move_is_reported_once_by_its_task(store: FakeStore) -> None:
    moved = list[str]()
    facts = make_facts(store, on_move=moved.append)
    references = store.add("tone", version=1), store.add("intent", version=1)

    for version in (1, 2, 2, 1):
        store.add("tone", version=version)
        await facts.renew()
        for reference in references * 2:
            await version_of(facts, reference)

    assert moved == ["tone", "tone"]


def guard(version: int = 1) -> PublishedPolicy:
    rules = [make_rule(when(task, "yes"), name=task) for task in ("attack", "tone")]
    policy = make_policy(*rules)
    return PublishedPolicy(document=policy, version=version, published_at=CREATED_AT, by="ann")


async def test_all_facts_are_forgotten_together(store: FakeStore) -> None:
    asked = Counter[str]()

    async def policy(_: str) -> PublishedPolicy:
        asked["policy"] += 1
        return guard(asked["policy"])

    async def names(_: str) -> tuple[str, ...]:
        asked["names"] += 1
        return tuple(map(str, range(asked["names"])))

    facts = make_facts(store, policy=policy, names=names)

    async def found() -> tuple[int, int]:
        published = await facts.policy("guard", "ann", tasks=ALL_TASKS)
        return published.version, len(await facts.names("ann", tasks=ALL_TASKS))

    assert [await found(), await found()] == [(1, 1), (1, 1)]
    facts.invalidate()
    assert await found() == (2, 2)
    await facts.renew()
    assert await found() == (3, 3)


async def test_the_names_are_looked_up_once_for_all_lists_of_tasks(store: FakeStore) -> None:
    asked = list[str]()

    async def names(every: str) -> tuple[str, ...]:
        asked.append(every)
        return "acme-tone", "acme2", "zeta"

    facts = make_facts(store, names=names)
    lists = [("acme*",), ("acme-*", "acme-tone"), ("none",), ("acme",), ("*",), ("zeta", "acme2")]

    found = [await facts.names("ann", tasks=TaskList(patterns=it)) for it in lists]

    assert list(map(sorted, found)) == [
        ["acme-tone", "acme2"],
        ["acme-tone"],
        [],
        [],
        ["acme-tone", "acme2", "zeta"],
        ["acme2", "zeta"],
    ]
    await facts.renew()
    assert len(asked) == 2


async def test_a_policy_with_a_task_of_others_does_not_exist(store: FakeStore) -> None:
    async def policy(name: str) -> PublishedPolicy:
        if name == "guard":
            return guard()
        raise NunatakError("policy_not_found", policy=name)

    facts, messages = make_facts(store, policy=policy), list[str]()
    for name in ("guard", "other"):
        with raises("policy_not_found") as caught:
            await facts.policy(name, "ann", tasks=TaskList(patterns=("attack",)))
        messages.append(str(caught.value).replace(name, "it"))
    assert messages[0] == messages[1]


class HeldLookUps:
    """Looks references up at once, and answers a caller once its gate is open."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.gates: dict[str | None, asyncio.Event] = {}

    async def __call__(
        self, references: Collection[TaskReference], caller: str | None
    ) -> Found[TaskReference, Traffic]:
        found = {it: await self.store.resolve(it) for it in references}
        if gate := self.gates.get(caller):
            await gate.wait()
        return found


def counted(look_up: HeldLookUps) -> tuple[KnownFacts, list[str]]:
    """Facts, and the tasks whose moves they count."""
    moves = list[str]()
    return make_facts(look_up.store, traffic=look_up, on_move=moves.append), moves


async def test_a_look_up_that_comes_late_counts_no_move(store: FakeStore) -> None:
    reference, look_up = store.add("tone", version=1), HeldLookUps(store)
    facts, moves = counted(look_up)
    look_up.gates["slow"] = asyncio.Event()
    slow = asyncio.create_task(version_of(facts, reference, "slow"))
    await settle()
    await version_of(facts, reference)
    store.add("tone", version=2)
    await facts.renew()
    assert moves == ["tone"]

    look_up.gates["slow"].set()
    assert await slow == 1
    await version_of(facts, reference)
    await facts.renew()

    assert moves == ["tone"]


async def test_a_move_is_counted_although_a_change_overtakes_the_look_up(store: FakeStore) -> None:
    reference, look_up = store.add("tone", version=1), HeldLookUps(store)
    facts, moves = counted(look_up)
    look_up.gates["ann"] = asyncio.Event()
    asked = asyncio.create_task(version_of(facts, reference))
    await settle()
    await facts.renew()
    look_up.gates["ann"].set()
    assert await asked == 1

    store.add("tone", version=2)
    await facts.renew()

    assert (await version_of(facts, reference), moves) == (2, ["tone"])
