"""Kill -9 at random times, over lives that publish, promote, roll back, delete and collect."""

import random
from collections.abc import Callable

from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry
from torture.fork_server import Death, ForkServer, after_seconds
from torture.mutants import Mutant
from torture.operations import Operation, State, draft_of, observe, plan
from torture.tally import Tally

LIVES_PER_STORE = 40
OPERATIONS_PER_LIFE = 40
LONGEST_LIFE_S = 0.12
KEEPER = "keeper"


def kill_at_random(
    forks: ForkServer,
    new_location: Callable[[], str],
    *,
    num_kills: int,
    seed: int,
    mutant: Mutant | None = None,
) -> Tally:
    """Kill processes until `num_kills` of them have died; check the store after each."""
    tally = Tally(campaign="kill -9 at random times", seed=seed)
    source = random.Random(seed)
    location, state, lives = new_location(), State(), 0
    while tally.injected < num_kills:
        if lives == LIVES_PER_STORE:
            location, state, lives = new_location(), State(), 0
        lives += 1
        steps = plan(source, state, OPERATIONS_PER_LIFE)
        death = forks.run(
            location,
            [operation for operation, _ in steps],
            mutant=mutant,
            kill_when=after_seconds(source.uniform(0, LONGEST_LIFE_S)),
            is_killed_from_birth=source.random() < 0.1,
        )
        tally.injected += death.was_killed
        if death.refusal is not None:
            tally.wrong += 1
            tally.note(f"refused a valid operation: {death.refusal}")
        found = judge(tally, location, [state, *(after for _, after in steps)], death)
        if found is None:
            location, state, lives = new_location(), State(), 0
            continue
        tally.survived += death.was_killed
        state = found
    return tally


def judge(tally: Tally, location: str, states: list[State], death: Death) -> State | None:
    """Compare a store with the states it may be in; return the one it is in, if any.

    The store must show all acknowledged operations, and may show the operation in progress.
    """
    if death.breakage is not None:
        tally.wrong += 1
        tally.note(f"ended by {death.breakage}")
        return None
    try:
        with Registry.open(location) as registry:
            # Waits for the dead process's last statement in a database server.
            registry.publish(*draft_of(KEEPER, 0))
            seen = {name: task for name, task in observe(registry).items() if name != KEEPER}
            errors = [finding for finding in registry.verify() if finding.kind.is_error]
    except NunatakError as error:
        tally.dangling += 1
        tally.note(f"{error.code}: {error}")
        return None
    if errors:
        tally.dangling += 1
        tally.note(str(errors[0]))
        return None
    allowed = states[death.acknowledged : death.acknowledged + 2]
    matching = next((state for state in allowed if state.observable() == seen), None)
    if matching is None:
        was_lost = any(state.observable() == seen for state in states[: death.acknowledged])
        tally.lost += was_lost
        tally.wrong += not was_lost
        tally.note(f"after {death.acknowledged} acknowledged operations: {seen}")
    return matching


def fixed(*operations: Operation) -> list[tuple[Operation, State]]:
    """Return operations with the states they lead to."""
    steps, state = list[tuple[Operation, State]](), State()
    for operation in operations:
        state = state.after(operation)
        steps.append((operation, state))
    return steps
