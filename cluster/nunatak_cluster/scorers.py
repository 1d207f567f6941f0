"""Scoring on a cluster: actors that hold the backbone and the tasks, and answer chunks.

The caller reads the inputs and writes the answers, and no actor touches a file of the caller. The
chunks of an actor that dies go to the others, and a new actor starts as soon as the cluster has a
place for it. The numbers of a chunk depend on the chunk alone, so the second answer equals the
first.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

import ray
from ray.exceptions import RayError, RayTaskError

from nunatak_cluster.session import joined, on_all_nodes, places
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters
from nunatak_registry import Registry
from nunatak_server.predict.scoring import ScoredInputs, Scorer, open_scorer
from nunatak_server.settings import ServerSettings

Item = TypeVar("Item")
IN_FLIGHT: Final = 2
"""Chunks that each actor has: one in work, and one that waits."""
MAX_RETRIES: Final = 30
"""Tries of a chunk, or of a start, after the first one. What ends its process each time must end
too."""


class ScoringActor:
    """One scorer in a process of the cluster; it loads at its first call.

    An error of the constructor would arrive as the death of the actor, without its code.
    """

    def __init__(
        self, settings: ServerSettings, versions: Mapping[str, TaskManifest], options: Parameters
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._options = options

    @cached_property
    def _scorer(self) -> Scorer:
        with Registry.open(self._settings.registry, create=False) as registry:
            return open_scorer(
                registry, self._versions, settings=self._settings, options=self._options
            )

    def numerics(self) -> str:
        return self._scorer.numerics

    def score(self, inputs: Sequence[Input], numerics: str) -> ScoredInputs:
        if self._scorer.numerics != numerics:
            raise NunatakError(
                "ray_failed",
                problem=f"expected {numerics} on all nodes, got {self._scorer.numerics} on one; "
                "set NUNATAK_DEVICE and NUNATAK_DTYPE",
            )
        return self._scorer.score(self._scorer.read(inputs))


@dataclass(slots=True, kw_only=True, eq=False)
class _Chunk(Generic[Item]):
    item: Item
    inputs: Sequence[Input] | None
    scored: ScoredInputs | None = None
    num_losses: int = 0

    @property
    def is_done(self) -> bool:
        return self.inputs is None or self.scored is not None


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    actor: Any
    num_chunks: int = 0


class RayScorers:
    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self._make = make
        self._count = count
        self._workers = list[_Worker]()
        """The actors that have started."""
        self._pending = dict[Any, tuple[_Worker, _Chunk[Any] | None]]()
        """The awaited answers: to a chunk, or of an actor that starts."""
        self._unsent = deque[_Chunk[Any]]()
        self._failed_starts = 0
        self.numerics = ""
        """The type of device and the number format of all actors."""

    def start(self) -> None:
        for _ in range(self._count):
            self._start()
        while not self.numerics:
            self._take()

    def close(self) -> None:
        starting = (worker for worker, chunk in self._pending.values() if chunk is None)
        for worker in (*self._workers, *starting):
            ray.kill(worker.actor)

    def score(
        self, items: Iterable[tuple[Item, Sequence[Input] | None]]
    ) -> Generator[tuple[Item, ScoredInputs | None]]:
        """Yield each item with the answers to its inputs, in order; None for items without inputs.

        Items are taken only while an actor has room, so the memory holds a few chunks.
        """
        waiting = deque[_Chunk[Item]]()
        for item, inputs in items:
            chunk = _Chunk(item=item, inputs=inputs)
            waiting.append(chunk)
            if not chunk.is_done:
                self._unsent.append(chunk)
                self._send()
            # The memory also holds answers that wait for an earlier chunk.
            while waiting and (waiting[0].is_done or len(waiting) > 2 * IN_FLIGHT * self._count):
                yield self._first(waiting)
        while waiting:
            yield self._first(waiting)

    def _first(self, waiting: deque[_Chunk[Item]]) -> tuple[Item, ScoredInputs | None]:
        chunk = waiting.popleft()
        while not chunk.is_done:
            self._take()
            self._send()
        return chunk.item, chunk.scored

    def _start(self) -> None:
        worker = _Worker(actor=self._make())
        self._pending[worker.actor.numerics.remote()] = worker, None

    def _send(self) -> None:
        """Send each chunk to the actor with the fewest chunks; wait while all are full."""
        while self._unsent:
            free = [it for it in self._workers if it.num_chunks < IN_FLIGHT]
            if not free:
                self._take()
                continue
            worker, chunk = min(free, key=attrgetter("num_chunks")), self._unsent.popleft()
            worker.num_chunks += 1
            reference = worker.actor.score.remote(chunk.inputs, self.numerics)
            self._pending[reference] = worker, chunk

    def _take(self) -> None:
        """Wait for the next answer. A lost chunk is unsent again, and a lost actor is replaced."""
        (reference,), _ = ray.wait(list(self._pending), num_returns=1)
        worker, chunk = self._pending.pop(reference)
        try:
            answer = ray.get(reference)
        except RayTaskError as error:
            cause = cast("BaseException | None", error.cause)
            raise (cause if isinstance(cause, NunatakError) else error) from None
        except RayError as error:
            if self._lose(worker, chunk) > MAX_RETRIES:
                raise NunatakError("ray_failed", problem=str(error).splitlines()[0]) from error
            return
        if chunk is not None:
            worker.num_chunks -= 1
            chunk.scored = answer
        else:
            self._workers.append(worker)
            self._failed_starts = 0
            self.numerics = self.numerics or answer

    def _lose(self, worker: _Worker, chunk: _Chunk[Any] | None) -> int:
        """Return how often this chunk, or a start, was lost."""
        if chunk is None:
            self._start()
            self._failed_starts += 1
            return self._failed_starts
        # Each chunk of a dead actor is lost, and the first of them tells that it is dead.
        if worker in self._workers:
            self._workers.remove(worker)
            self._start()
        chunk.num_losses += 1
        self._unsent.appendleft(chunk)
        return chunk.num_losses


@contextmanager
def ray_scorers(
    on: str,
    *,
    settings: ServerSettings,
    versions: Mapping[str, TaskManifest],
    options: Parameters,
    num_scorers: int | None = None,
) -> Generator[RayScorers]:
    """Start scorers, by default as many as the cluster has cores for; end them afterwards."""
    num_cpus = settings.compute_threads or 1
    needs_gpu = settings.device.startswith("cuda")
    own = {"compute_threads": num_cpus, "registry": on_all_nodes(settings.registry)}
    pinned = settings.model_copy(update=own)
    with joined(on):
        # An actor that Ray restarts would keep its chunks until the cluster has a place for it.
        actor: Any = ray.remote(ScoringActor).options(
            num_cpus=num_cpus, num_gpus=1 if needs_gpu else 0, max_restarts=0
        )
        count = num_scorers or places(num_cpus=num_cpus, needs_gpu=needs_gpu)
        made = RayScorers(partial(actor.remote, pinned, dict(versions), options), count)
        with closing(made):
            made.start()
            yield made
