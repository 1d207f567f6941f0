"""Loading one version from the store to the device, and pinning versions at the start.

`VersionLoader` runs on the load threads. `pin_at_start` loads the versions that the setting `pins`
names before the server is ready.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from nunatak_artifact import LoadedTask, load_task
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import SideStream, TrunkCache, compute_without_helpers
from nunatak_registry import Traffic
from nunatak_server.backbones import Backbones
from nunatak_server.residency.loads import LoadThrottle
from nunatak_server.residency.memory import HostTier

logger = logging.getLogger(__name__)


PROBE_TRUNK_BYTES = 8 * 1024**2
"""Budget of the cache: the probes of some hundred task versions, with a few short texts each."""
MAX_VALIDATED = 65_536
"""Most remembered validated versions, of about 200 bytes each. A full set is cleared."""


class VersionLoader:
    """Loads versions onto their backbones; several threads may call it at once.

    Where batches run on the CPU, a load thread computes on one core and pauses for batches. The
    probe of a version runs only at its first load. Each thread caches the trunk states of probes,
    because versions of one task often share their probe texts.
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
        """Read, check and convert a version; run its probe unless an earlier load has."""
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
        """Prepare the calling thread, and return its cache of trunk states."""
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
    """Pin the version that each reference means now.

    A version that cannot be loaded is logged and skipped: one bad version must not keep the server
    from serving the others.
    """
    for reference in references:
        try:
            await pin((await look_up(reference)).manifest)
        except NunatakError as error:
            logger.error("%s is not pinned: %s", reference, error)  # noqa: TRY400 - no bug of ours
