"""Kill -9 of upgrades at random times, on registries of many versions of the layout before."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch
from sqlalchemy import MetaData, insert

from doubles.golden import FIRST, GOLDEN, UNDONE, Rows, engine_of, lost_rows, rows_of
from doubles.tasks import tiny_task
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly
from nunatak_model import Backbone, Row, forward
from nunatak_registry import Registry
from nunatak_versions import load_task
from torture.fork_server import ForkServer, after_seconds
from torture.scale import publish_in_turn
from torture.tally import Tally

BEFORE: Final = "2"
NUM_TASKS: Final = 20
TEXTS: Final = ("where is my parcel?", "all is well", "")
MAX_KILLS: Final = 3
"""Most kills of the upgrades of one registry."""

Answers = dict[str, list[list[float]]]


class OldRegistries:
    """Registries of the layout before, all with the same versions and blobs."""

    def __init__(
        self, folder: Path, backbone: Backbone, *, num_versions: int, num_tasks: int = NUM_TASKS
    ) -> None:
        self.blobs, self.backbone = folder / "source" / "blobs", backbone
        source = folder / "source"
        drafts = [
            tiny_task(backbone, task=f"task{number}", method=HeadOnly(), seed=number)
            for number in range(num_tasks)
        ]
        publish_in_turn(source, drafts, num_versions)
        with Registry.open(source) as registry:
            for draft, _ in drafts:
                registry.promote(draft.task, "prod", 2)
        self.answers = answers_of(str(source), backbone)
        old = rows_of(str(source))
        (state,) = old["nunatak_state"]
        self.rows: Rows = {**old, "nunatak_state": [{**state, "schema_version": int(BEFORE)}]}

    def put(self, location: str, dialect: str) -> str:
        """Fill an empty database, and return its location."""
        engine, tables = engine_of(location), MetaData()
        with engine.begin() as connection:
            made = (GOLDEN / FIRST / f"{dialect}.sql").read_text().splitlines()
            for statement in [*made, UNDONE[BEFORE]]:
                connection.exec_driver_sql(statement)
            tables.reflect(connection)
            for table in tables.sorted_tables:
                if self.rows[table.name]:
                    connection.execute(insert(table), self.rows[table.name])
        engine.dispose()
        return location


def kill_upgrades(
    forks: ForkServer,
    old: OldRegistries,
    new_location: Callable[[], str],
    scratch: Path,
    *,
    num_kills: int,
    seed: int,
) -> Tally:
    """Kill upgrades until `num_kills` of them have died; look at the registry after each."""
    tally, source = Tally(campaign="kill -9 of upgrades", seed=seed), random.Random(seed)
    scratch.mkdir()
    whole_s = 0.0
    while tally.injected < num_kills:
        location = new_location()
        before = rows_of(location)
        # The last life ends by itself, however slow the machine has become.
        deaths_s = [source.uniform(0, whole_s) for _ in range(MAX_KILLS)] if whole_s else []
        for longest_s in (*deaths_s, None):
            began = time.monotonic()
            death = forks.run(
                location,
                [],
                upgrades_into=scratch,
                kill_when=None if longest_s is None else after_seconds(longest_s),
                is_killed_from_birth=longest_s is not None,
            )
            lived_s = time.monotonic() - began
            lost = lost_rows(before, rows_of(location))
            tally.lost += len(lost)
            for problem in lost:
                tally.note(problem)
            if not death.was_killed:
                break
            tally.injected += 1
            tally.survived += not lost
        whole_s = lived_s
        if problem := death.refusal or death.breakage:
            tally.wrong += 1
            tally.note(f"the upgrade of {location} ended with {problem}")
        _judge(tally, old, location)
    return tally


def answers_of(location: str, backbone: Backbone) -> Answers:
    """Return the logits of every task for some texts, by a fresh load of its version."""
    answers: Answers = {}
    with Registry.open(location, create=False) as registry:
        for name in registry.names():
            manifest = registry.resolve(name)
            loaded = load_task(manifest, registry.read_blob(manifest), backbone)
            encodings = backbone.tokenizer.encode(TEXTS, max_length=manifest.max_length)
            with torch.inference_mode():
                logits = forward(
                    backbone, [Row(encoding=it, branch=loaded.branch) for it in encodings]
                )
            answers[name] = [[float(value) for value in it.flatten()] for it in logits]
    return answers


def _judge(tally: Tally, old: OldRegistries, location: str) -> None:
    try:
        with Registry.open(location, create=False) as registry:
            faults = [it for it in registry.verify() if it.kind.is_error]
        answers = answers_of(location, old.backbone)
    except NunatakError as error:
        tally.dangling += 1
        tally.note(f"{error.code}: {error}")
        return
    tally.dangling += len(faults)
    tally.wrong += answers != old.answers
    with suppress(IndexError):
        tally.note(str(faults[0]))
