"""Versions that an operator wants in memory from the start on.

Loading: one version from the store to the device, on a thread of the loads.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

from nunatak_artifact import LoadedTask, load_task
from nunatak_model import Backbone, BesideCompute, TrunkCache, compute_without_helpers
from nunatak_registry import TaskManifest, TaskReference
from nunatak_server.failures import KNOWN_ERRORS
from nunatak_server.residency.loads import LoadThrottle
from nunatak_server.residency.memory import HostTier

logger = logging.getLogger(__name__)


def references_in(text: str) -> tuple[TaskReference, ...]:
    """Read task references that commas separate.

    Raises:
        InvalidNameError: one of them does not follow the grammar.
    """
    return tuple(TaskReference.parse(part.strip()) for part in text.split(",") if part.strip())


async def pin_at_start(
    references: Sequence[TaskReference],
    *,
    resolve: Callable[[TaskReference], Awaitable[TaskManifest]],
    pin: Callable[[TaskManifest], Awaitable[object]],
) -> None:
    """Pin what each reference means now; one that cannot be served is logged, and spares the rest.

    A server that would not start for one bad version would take all the others with it.
    """
    for reference in references:
        try:
            await pin(await resolve(reference))
        except KNOWN_ERRORS as error:
            logger.error("%s is not pinned: %s", reference, error)  # noqa: TRY400 - no bug of ours


# Room for the probes of some hundred task versions: a few short texts each.
PROBE_TRUNK_BYTES = 8 * 1024**2
MAX_VALIDATED = 65_536
"""Versions whose proof is remembered: some 200 bytes each."""


class VersionLoading:
    """Loads versions onto a backbone; may be called on several threads at once.

    Where batches run on the processor, a thread that loads computes alone from then on, and gives
    way to them. A version that comes back is not proven again, and the frozen part of probes is
    kept, per thread: versions of one task often have the same.
    """

    def __init__(self, backbone: Backbone, host_tier: HostTier, *, throttle: LoadThrottle) -> None:
        self._backbone = backbone
        self._host_tier = host_tier
        self._throttle = throttle
        self._threads = threading.local()
        self._validated = set[str]()
        self._beside = BesideCompute(backbone.device)

    def __call__(self, manifest: TaskManifest) -> LoadedTask:
        """Read, check and convert a version, and prove it if that was not done before.

        Raises:
            RegistryError: its bytes cannot be read or trusted.
            ModelError: its parameters do not fit.
            ArtifactError: it does not fit the backbone or fails its probe.
        """
        trunk = self._begin()
        data = self._host_tier.read(manifest)
        content = manifest.content_digest()
        with self._beside.work():
            task = load_task(
                manifest,
                data,
                self._backbone,
                is_validated=content in self._validated,
                trunk=trunk,
                pause=self._throttle,
            )
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated.add(content)
        return task

    def _begin(self) -> TrunkCache:
        """Prepare the calling thread, and return what it keeps of probes."""
        self._throttle.begin()
        held: TrunkCache | None = getattr(self._threads, "trunk", None)
        if held is None:
            if self._backbone.device.type == "cpu":
                compute_without_helpers()
            held = self._threads.trunk = TrunkCache(max_bytes=PROBE_TRUNK_BYTES)
        return held
