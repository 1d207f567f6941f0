"""The way of one task version from the store to the device, on a thread for loads."""

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import SideStream, TrunkCache, compute_without_helpers
from nunatak_registry import Traffic
from nunatak_server.engine.backbones import Backbones
from nunatak_server.residency.resident_set import HostTier
from nunatak_versions import LoadedTask, load_task

logger = logging.getLogger(__name__)

PROBE_TRUNK_BYTES = 8 * 1024**2
"""Budget of the cache: the probes of some hundred task versions, with a few short texts each."""
MAX_VALIDATED = 65_536
"""Most remembered validated versions, of about 200 bytes each. A full set is cleared."""
REST = 2.0
"""Seconds of rest for each second of work."""
MAX_REST_S = 0.02
"""Longest rest. Most batches end within this time."""


class LoadThrottle:
    """Makes load threads rest between pieces of work while batches run on the same cores.

    A batch on a CPU waits for its slowest core. A lower thread priority is no alternative: a thread
    that holds the interpreter lock and gets no core would block the server.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        *,
        rest: Callable[[float], object] = time.sleep,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._is_wanted = is_wanted
        self._rest = rest
        self._worked = worked
        self._threads = threading.local()

    def begin(self) -> None:
        self._threads.worked = self._worked()

    def __call__(self) -> None:
        """Rest for `REST` times the last piece of work, `MAX_REST_S` at most, if rest is wanted."""
        begun: float | None = getattr(self._threads, "worked", None)
        if begun is not None and self._is_wanted():
            self._rest(min(MAX_REST_S, REST * (self._worked() - begun)))
        self.begin()


class VersionLoader:
    """Loads versions onto their backbones; several threads may call it at once.

    Where batches run on the CPU, a load thread computes on one core and pauses for batches. Each
    thread caches the trunk states of probes, because versions of one task often share probe texts.
    """

    def __init__(
        self, backbones: Backbones, host_tier: HostTier, *, throttle: LoadThrottle
    ) -> None:
        self._backbones = backbones
        self._host_tier = host_tier
        self._throttle = throttle
        self._threads = threading.local()
        self._validated = set[str]()
        self._side_stream = SideStream(backbones.default.device)

    def __call__(self, manifest: TaskManifest) -> LoadedTask:
        backbone = self._backbones.of(manifest)
        trunk = self._begin()
        data = self._host_tier.read(manifest)
        content = manifest.content_digest()
        load = partial(
            load_task,
            manifest,
            data,
            is_validated=content in self._validated,
            trunk=trunk,
            pause=self._throttle,
        )
        with self._side_stream.work():
            task = self._backbones.in_use(backbone).run(load)
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated.add(content)
        return task

    def _begin(self) -> TrunkCache:
        self._throttle.begin()
        held: TrunkCache | None = getattr(self._threads, "trunk", None)
        if held is None:
            if self._backbones.default.device.type == "cpu":
                compute_without_helpers()
            held = self._threads.trunk = TrunkCache(max_bytes=PROBE_TRUNK_BYTES)
        return held


async def pin_at_start(
    references: Sequence[TaskReference],
    *,
    look_up: Callable[[TaskReference], Awaitable[Traffic]],
    pin: Callable[[TaskManifest], Awaitable[object]],
) -> None:
    """Pin the versions that references mean now. A bad version is logged, and stops no other."""
    for reference in references:
        try:
            await pin((await look_up(reference)).manifest)
        except NunatakError as error:
            logger.error("%s is not pinned: %s", reference, error)  # noqa: TRY400 - no bug of ours
