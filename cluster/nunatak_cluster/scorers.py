"""Scoring on a cluster: actors that hold the backbone and the tasks, and answer chunks.

The caller reads the inputs and writes the answers, and no actor touches a file of the caller. An
actor whose node dies is started again elsewhere, and its chunks are scored again. The numbers of a
chunk depend on the chunk alone, so the second answer equals the first.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, TypeVar, cast

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
"""Tries of a chunk after the first one. A chunk that ends its process each time must end too."""


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


class RayScorers:
    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self.numerics: str = _result(actors[0].numerics.remote())
        """The type of device and the number format of all actors."""

    def score(
        self, items: Iterable[tuple[Item, Sequence[Input] | None]]
    ) -> Generator[tuple[Item, ScoredInputs | None]]:
        """Yield each item with the answers to its inputs, in order; None for items without inputs.

        Items are taken only while an actor has room, so the memory holds a few chunks.
        """
        waiting, owners = deque[tuple[Item, Any]](), dict[Any, int]()
        for item, inputs in items:
            reference = None
            if inputs is not None:
                chosen = self._actor_with_room(owners)
                reference = self._actors[chosen].score.remote(inputs, self.numerics)
                owners[reference] = chosen
            waiting.append((item, reference))
            # The memory also holds answers that wait for an earlier chunk.
            while waiting and (
                waiting[0][1] not in owners or len(waiting) > 2 * IN_FLIGHT * len(self._actors)
            ):
                yield _first(waiting, owners)
        while waiting:
            yield _first(waiting, owners)

    def _actor_with_room(self, owners: dict[Any, int]) -> int:
        """Return the actor with the fewest chunks in work; if all are full, wait for one."""
        if len(owners) == IN_FLIGHT * len(self._actors):
            done, _ = ray.wait(list(owners), num_returns=1)
            for reference in done:
                del owners[reference]
        loads = Counter(owners.values())
        return min(range(len(self._actors)), key=loads.__getitem__)


def _first(
    waiting: "deque[tuple[Item, Any]]", owners: dict[Any, int]
) -> tuple[Item, ScoredInputs | None]:
    item, reference = waiting.popleft()
    scored = None if reference is None else _result(reference)
    owners.pop(reference, None)
    return item, scored


def _result(reference: Any) -> Any:  # noqa: ANN401 - Ray's references have no types
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = cast("BaseException | None", error.cause)
        raise (cause if isinstance(cause, NunatakError) else error) from None
    except RayError as error:
        raise NunatakError("ray_failed", problem=str(error).splitlines()[0]) from error


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
        actor: Any = ray.remote(ScoringActor).options(
            num_cpus=num_cpus,
            num_gpus=1 if needs_gpu else 0,
            max_restarts=-1,
            max_task_retries=MAX_RETRIES,
        )
        count = num_scorers or places(num_cpus=num_cpus, needs_gpu=needs_gpu)
        actors = [actor.remote(pinned, dict(versions), options) for _ in range(count)]
        try:
            yield RayScorers(actors)
        finally:
            for each in actors:
                ray.kill(each)
