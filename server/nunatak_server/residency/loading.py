"""Loading: one version from the store to the device, on a thread of the loads."""

import threading

from nunatak_artifact import LoadedTask, load_task
from nunatak_model import Backbone, BesideCompute, TrunkCache, compute_without_helpers
from nunatak_registry import TaskManifest
from nunatak_server.residency.giving_way import GivingWay
from nunatak_server.residency.host import HostTier

# Room for the probes of some hundred task versions: a few short texts each.
PROBE_TRUNK_BYTES = 8 * 1024**2


class VersionLoading:
    """Loads versions onto a backbone; may be called on several threads at once.

    Where batches run on the processor, a thread that loads computes alone from then on, and gives
    way to them. A version that was evicted comes back soon, and its probe with it: the frozen part
    of a probe is kept, per thread.
    """

    def __init__(self, backbone: Backbone, host_tier: HostTier, *, give_way: GivingWay) -> None:
        self._backbone = backbone
        self._host_tier = host_tier
        self._give_way = give_way
        self._threads = threading.local()
        self._beside = BesideCompute(backbone.device)

    def __call__(self, manifest: TaskManifest) -> LoadedTask:
        """Read, check, convert and probe a version.

        Raises:
            RegistryError: its bytes cannot be read or trusted.
            ModelError: its parameters do not fit.
            ArtifactError: it does not fit the backbone or fails its probe.
        """
        trunk = self._begin()
        data = self._host_tier.read(manifest)
        with self._beside.work():
            return load_task(manifest, data, self._backbone, trunk=trunk, pause=self._give_way)

    def _begin(self) -> TrunkCache:
        """Prepare the calling thread, and return what it keeps of probes."""
        self._give_way.begin()
        held: TrunkCache | None = getattr(self._threads, "trunk", None)
        if held is None:
            if self._backbone.device.type == "cpu":
                compute_without_helpers()
            held = self._threads.trunk = TrunkCache(max_bytes=PROBE_TRUNK_BYTES)
        return held
