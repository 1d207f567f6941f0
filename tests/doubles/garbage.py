"""What only the garbage collector finds, and the memory of a server over many answers.

The hook that checks shapes in tests keeps the classes of annotations alive, so `in_new_process`
runs code without the hook.
"""

import gc
import http.client
import json
import random
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from doubles.backbones import FAMILIES, tiny_backbone
from doubles.processes import ended
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task, random_parameters, spec_of
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Method, TopK
from nunatak_model import Encoding, Row, build_branch, forward
from nunatak_registry import Registry
from nunatak_server.processes.serving import tune_interpreter

TASKS = ("tone", "other")
WORDS = ("is", "it", "late", "where", "my", "parcel", "no", "yes", "order", "number")
METHODS: tuple[Method, ...] = (
    *(HeadOnly(), TopK(num_layers=1), Full()),
    *(Ia3(), Bottleneck(size=4, first_layer=1)),
)
FIRST = 50
"""Answers before a measurement, which fill caches."""


@contextmanager
def garbage() -> Generator[list[object]]:
    """At the end of the block, keep the objects of the block that only the collector finds.

    Later collections skip older objects: with these, a collection takes half a second.
    """
    found = list[object]()
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def kinds_of(left: Iterable[object], *, at_least: int) -> Counter[str]:
    """Count the objects by type, whatever library made them; rarer types do not count.

    Rare ones come from one-time work, such as the first use of a statement.
    """
    kinds = Counter(f"{type(it).__module__}.{type(it).__qualname__}" for it in left)
    return Counter({kind: number for kind, number in kinds.items() if number >= at_least})


def in_new_process(*arguments: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what `main` prints in a process without the hook."""
    done = ended("import sys; from doubles.garbage import main; main(*sys.argv[1:])", *arguments)
    assert done.status == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _left_by_a_batch(family: Any) -> Counter[str]:  # noqa: ANN401 - a family's name
    backbone = tiny_backbone(family=family)
    rows = list[Row]()
    for seed, method in enumerate(METHODS):
        spec = spec_of(backbone, method, num_labels=2)
        parameters = random_parameters(spec, backbone, seed=seed)
        ids = tuple(range(5, 14 + seed))
        rows.append(
            Row(
                encoding=Encoding(token_ids=ids, type_ids=(0,) * len(ids)),
                branch=build_branch(spec, backbone.config, parameters),
            )
        )
    with torch.inference_mode():
        forward(backbone, rows)
        with garbage() as left:
            forward(backbone, rows)
    return kinds_of(left, at_least=1)


@contextmanager
def asking() -> Generator[Any]:
    """Yield a function that sends so many requests to a real server in this process."""
    backbone, chance = tiny_backbone(), random.Random(0)
    with TemporaryDirectory() as folder, Registry.open(Path(folder)) as registry:
        for seed, task in enumerate(TASKS):
            publish_tiny_task(registry, backbone, task=task, seed=seed)
        # A cache of states that is full before the measurement begins.
        settings = make_settings(trunk_cache_bytes=2**20)
        with running_server(backbone, registry, settings) as address:
            host, _, port = address.removeprefix("http://").partition(":")
            with closing(http.client.HTTPConnection(host, int(port))) as connection:

                def ask(number: int) -> None:
                    for _ in range(number):
                        words = chance.choices(WORDS, k=chance.randint(3, 30))
                        body = {"inputs": f"{' '.join(words)} {chance.random()}"}
                        path = f"/v1/tasks/{chance.choice(TASKS)}/predict"
                        sent = {"content-type": "application/json"}
                        connection.request("POST", path, json.dumps(body), sent)
                        answer = connection.getresponse()
                        answer.read()
                        if answer.status != http.HTTPStatus.OK:
                            raise AssertionError(answer.status)

                yield ask


def left_by_work(number: int) -> dict[str, Counter[str]]:
    """The garbage of so many answers, and of a mixed batch of each family."""
    with asking() as ask:
        ask(FIRST)
        with garbage() as left:
            ask(number)
    of_answers = kinds_of(left, at_least=1)
    return {"answers": of_answers} | {family: _left_by_a_batch(family) for family in FAMILIES}


def memory_over_answers(number: int, every: int) -> list[int]:
    """Bytes in memory after each `every` answers, with the collections of a server."""
    process, found = psutil.Process(), list[int]()
    with asking() as ask:
        tune_interpreter(max_requests=10_000)
        for _ in range(number // every):
            ask(every)
            found.append(process.memory_info().rss)
            print(found[-1], gc.get_count(), file=sys.stderr, flush=True)  # noqa: T201 - the curve
    return found


def main(kind: str, *numbers: str) -> None:
    """Print the measurement of this name as JSON."""
    measure = {"work": left_by_work, "memory": memory_over_answers}[kind]
    print(json.dumps(measure(*map(int, numbers))))  # noqa: T201 - the answer of this process
