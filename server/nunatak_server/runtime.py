"""The runtime: all parts of a serving process together, without a transport.

A `Runtime` belongs to the event loop on which it starts. Before it is ready, it answers the rows of
`warm_up`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import torch

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_contract.wire import ReplicaLoad
from nunatak_model import TrunkCache, on_own_thread
from nunatak_registry import Beat, Generation, Registry, StoreUnavailableError, Traffic
from nunatak_server import VERSION
from nunatak_server.catalog.catalog import Catalog, KnownFacts
from nunatak_server.catalog.following import (
    PATIENCE_S,
    HoldRenewal,
    Membership,
    RegistryWatch,
    run_together,
    until_answered,
)
from nunatak_server.decisions.collection import Collector
from nunatak_server.decisions.decider import Decider
from nunatak_server.decisions.upstream import Upstream
from nunatak_server.engine.backbones import Backbones, warm_up_batches, warm_up_tasks
from nunatak_server.engine.compute import BatchCompute, Contention, holds_trunk
from nunatak_server.engine.engine import Engine
from nunatak_server.errors import EngineFailedError
from nunatak_server.predict.service import PredictionService
from nunatak_server.residency.loading import LoadThrottle, VersionLoader, pin_at_start
from nunatak_server.residency.residency import Loader, Residency
from nunatak_server.residency.resident_set import (
    HostTier,
    MemoryReturn,
    host_memory_budget,
    key_of,
    return_memory,
    size_in_memory,
    task_memory_budget,
    trunk_cache_budget,
)
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import (
    CALLER_SHARE,
    Admission,
    Readiness,
    RegistryLease,
    State,
)
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.planner import TurnRules
from nunatak_server.scheduler.rows import backbone_answer
from nunatak_server.scheduler.turns import Quotas, Turns
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.memory import MemoryLedger, ServerState, take_stock
from nunatak_server.telemetry.metrics import Metrics, note_prediction
from nunatak_server.tokenization import Tokenization
from nunatak_server.verdicts.judge import Judge
from nunatak_versions import PARAMETERS_ROLE

if TYPE_CHECKING:
    from nunatak_server.telemetry.spans import SpanTracing

POLLS_PER_HOLD = 20
"""Number of polls of the registry for each possible write of a hold."""

logger = logging.getLogger(__name__)


class Runtime:
    """The threads and the state of one serving process; `start` before use, `aclose` after."""

    runtime_bytes: int | None = None
    """RSS when the server was ready, less what the ledger counts; None on a device, or if the RSS
    was unknown."""

    def __init__(
        self,
        *,
        settings: ServerSettings,
        backbones: Backbones,
        registry: Registry,
        on_fatal: Callable[[EngineFailedError], None] = lambda _: None,
        weights: Mapping[str, float] | None = None,
        tracing: "SpanTracing | None" = None,
        upstream: Upstream | None = None,
    ) -> None:
        """`on_fatal` may do nothing: the failure is logged, and requests get 503 from then on."""
        backbone = backbones.default
        settings = settings.for_device(backbone.device.type)
        self.settings = settings
        self.backbones = backbones
        self.backbone = backbone
        """The default backbone."""
        self.registry = registry
        lease_s = settings.registry_lease_s
        lease = None if lease_s is None else RegistryLease(seconds=lease_s)
        trunk_bytes = trunk_cache_budget(
            settings.trunk_cache_bytes,
            sum(it.num_bytes for it in backbones),
            processes=settings.processes,
        )
        self.trunk_cache = TrunkCache(max_bytes=trunk_bytes)
        self.metrics = Metrics()
        self.catalog = Catalog(registry)
        self.facts = KnownFacts(
            self.catalog, on_move=partial(self.metrics.count_task, "alias_moves")
        )
        self._membership = Membership(
            beat=self._beat,
            leave=lambda: self.catalog.note(registry.replicas.leave, self.catalog.reader),
            lease=lease,
            on_return=self.facts.invalidate,
        )
        self.readiness = Readiness(
            on_move=self._membership.tell,
            stalled_s=lambda: self._engine.stalled_s,
            max_stall_s=settings.stall_s,
            lease=lease,
        )
        self._build = {
            "version": VERSION,
            "backbone": ",".join(it.name for it in backbones),
            "device": str(backbone.device),
            "dtype": str(backbone.dtype).removeprefix("torch."),
        }
        self._on_fatal = on_fatal
        # Recorded before the budget of task versions, which is a share of the memory that is left.
        trunk = self.trunk_cache if trunk_bytes else None
        self._computes = {
            it.digest: BatchCompute(it, trunk=trunk, in_use=backbones.in_use(it))
            for it in backbones
        }
        self.tracing = tracing
        batch_limits = settings.batch_limits(longest_row_tokens=backbones.max_tokens)
        # On a CPU, batches are timed by the CPU time of the engine thread. With wall time, other
        # work on the same cores would look like slow batches, and the time model could not see how
        # time grows with tokens.
        self._memory_return = MemoryReturn(return_memory, self._measure)
        self._engine = Engine(
            computes=self._computes,
            rules=TurnRules(
                weights=weights or {}, is_trunk_held=partial(holds_trunk, self._computes)
            ),
            limits=batch_limits,
            time_model=BatchTimeModel(fixed_share=settings.batch_overhead),
            observers=[
                *(it.observe_batch for it in (Contention(), self.metrics, tracing) if it),
                self._memory_return.after_batch,
            ],
            on_fatal=self._fail,
            stopwatch=time.thread_time if backbone.device.type == "cpu" else time.monotonic,
        )
        self._tokenization = Tokenization(
            {it.digest: it.tokenizer for it in backbones}, num_threads=settings.tokenizer_threads
        )
        self.admission = Admission(
            max_requests=settings.max_queued_requests,
            max_tokens=settings.max_queued_tokens,
            max_bytes=settings.max_held_bytes,
            # Without keys all requests have one caller.
            caller_share=CALLER_SHARE if settings.knows_callers else None,
            weights=weights or {},
            quotas=Quotas(settings.quotas()),
            time_model=self._engine.time_model,
        )
        throttle = LoadThrottle(self.should_throttle_loads)
        self.host_tier = HostTier(
            partial(registry.read_blob, role=PARAMETERS_ROLE, pause=throttle),
            budget_bytes=host_memory_budget(settings.host_memory_bytes, backbone.device),
        )
        budget_bytes = task_memory_budget(settings.task_memory_bytes, backbone.device)
        for each in backbones:
            if each.ops.banks is not None:
                each.ops.banks.limit(budget_bytes // len(self._computes))
        self.residency = Residency(
            loader=Loader(
                load=VersionLoader(backbones, self.host_tier, throttle=throttle),
                return_soon=self._memory_return.soon,
                size_of=partial(
                    size_in_memory,
                    dtype=backbone.dtype,
                    quantized={it.digest for it in backbones if it.is_quantized},
                ),
                num_threads=settings.load_threads,
                on_fatal=self._fail,
            ),
            budget_bytes=budget_bytes,
            metrics=self.metrics,
        )
        self._turns = Turns()
        self.rollouts = Rollouts(
            residency=self.residency,
            tolerance=settings.shadow_tolerance,
            turns=self._turns,
            metrics=self.metrics,
        )
        self.service = PredictionService(
            readiness=self.readiness,
            settings=settings,
            admission=self.admission,
            facts=self.facts,
            residency=self.residency,
            tokenization=self._tokenization,
            engine=self._engine,
            rollouts=self.rollouts,
            turns=self._turns,
            metrics=self.metrics,
            observers=(
                self.metrics.observe_prediction,
                note_prediction,
                *([tracing.observe_prediction] if tracing else []),
            ),
            backbones=backbones,
        )
        self.judge = Judge(facts=self.facts, service=self.service, metrics=self.metrics)
        self._upstream = upstream
        self._collector = None if upstream is None else Collector.of(settings)
        self.decider = Decider(
            facts=self.facts,
            service=self.service,
            settings=settings,
            metrics=self.metrics,
            upstream=upstream,
            collector=self._collector,
        )
        self._watch = RegistryWatch(
            generation=partial(self.catalog.poll, registry.generation),
            on_change=self._registry_has_changed,
            on_restore=partial(self.residency.drop_unnamed, self._look_up),
            interval_s=settings.registry_poll_ms / 1000,
        )
        self.replica_id = settings.replica_id or uuid4().hex[:8]
        """The name of this process among the replicas of its registry."""
        self._started = datetime.now(UTC)
        self._process = psutil.Process()
        self._process_bytes = 0
        self._watching: asyncio.Task[None] | None = None
        self._holding = HoldRenewal(
            resident=lambda: [key_of(it.manifest)[:2] for it in self.residency.resident()],
            hold=self.catalog.hold,
            held=lambda: self.catalog.note(registry.held, self.catalog.reader),
            on_first=self._membership.tell,
            # A hold is a write. If more tasks are in use than fit, the versions in memory change
            # with every other request.
            interval_s=POLLS_PER_HOLD * settings.registry_poll_ms / 1000,
        )

    def should_throttle_loads(self) -> bool:
        # Batches on an accelerator do not use the cores of a load.
        shares_cores = self.backbone.device.type == "cpu"
        return shares_cores and self._engine.num_rows > self.residency.num_waiting_for_loads

    async def start(self, *, is_replica: bool = True) -> None:
        """Start the threads, run forward passes, load the pins, and then accept requests.

        No operator waits for a process that is no replica, so `follow_own_change` must come before
        each of its requests.
        """
        if self.settings.compute_threads:
            torch.set_num_threads(self.settings.compute_threads)
        logger.info(
            "task versions may take %.2f GB on %s, and %.2f GB of the host tier",
            self.residency.stats().budget_bytes / 1e9,
            self.backbone.device,
            self.host_tier.stats().budget_bytes / 1e9,
        )
        self._engine.start()
        await self._warm_up()
        await pin_at_start(self.settings.pinned(), look_up=self._learn, pin=self.residency.pin)
        # The weights before they were packed or quantized, and the stored bytes of the pins.
        await self._memory_return.start()
        if self.backbone.device.type == "cpu" and (rss := self._measure()):
            counted = self.counted_bytes(take_stock(self.backbones, self.residency.resident()))
            self.runtime_bytes = max(0, rss - counted)
        await self._tell_other_backbones()
        parts = [self._watch.run, self._holding.run]
        if is_replica:
            await self._join()
            parts.append(self._membership.run)
        if self._collector is not None:
            await self._collector.start()
            parts.append(self._collector.run)
        self._watching = asyncio.create_task(run_together(*parts), name="the registry")
        self.depend_on(self._watching)
        self.readiness.move_to(State.READY)

    def counted_bytes(self, ledger: MemoryLedger) -> int:
        """Bytes of parameters, in memory and in the host tier, and of trunk states."""
        return ledger.shared_bytes + self.host_tier.stats().bytes + self.trunk_cache.stats.bytes

    def state(self) -> ServerState:
        return ServerState(
            build=self._build,
            is_ready=self.readiness.is_ready,
            reads_registry=self._watch.is_readable,
            holds_versions=not self._holding.is_refused,
            num_waiting=self._num_waiting,
            num_running=self._engine.num_running_requests,
            num_admitted_tokens=self.admission.tokens.total,
            num_body_bytes=self.admission.bytes.total,
            ledger=take_stock(self.backbones, self.residency.resident()),
            device=self.residency.stats(),
            task_bytes=self.residency.task_bytes(),
            host=self.host_tier.stats(),
            trunk=self.trunk_cache.stats,
            task_label=self.metrics.task_label,
        )

    def kernels(self) -> tuple[str, ...]:
        found = (it.fast_kernels for it in self._computes.values())
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def warnings(self) -> list[str]:
        found = list[str]()
        if not self._watch.is_readable:
            found.append("the registry cannot be read: the server does not see its changes")
        if self._holding.is_over:
            found.append("the registry takes no holds: versions in memory may be deleted")
        return found

    def depend_on(self, following: asyncio.Task[None]) -> None:
        """Fail the process if `following` fails. The task's name says what `following` follows."""
        following.add_done_callback(self._check_following)

    def announce_drain(self) -> None:
        """Still accept requests, while /readyz answers 503."""
        self.readiness.move_to(State.LEAVING)

    def begin_drain(self) -> None:
        self.readiness.move_to(State.DRAINING)

    async def aclose(self) -> None:
        """Answer the requests in flight, then end all threads; the registry stays open."""
        self.begin_drain()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.rollouts.aclose()
        await self.residency.aclose()
        await self._engine.aclose()
        self._memory_return.close()
        if self._upstream is not None:
            await self._upstream.aclose()
        if self._collector is not None:
            await self._collector.aclose()
        await asyncio.to_thread(self._tokenization.close)
        await asyncio.to_thread(self._turns.close)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._holding.release()
                await self._membership.leave()
                await asyncio.to_thread(self.catalog.close)
        except TimeoutError:
            logger.warning("the registry does not answer, and is left without a release of holds")
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    async def _beat(self, seen: Generation) -> int:
        return await self.catalog.note(
            self.registry.replicas.beat,
            Beat(
                key=self.catalog.reader,
                id=self.replica_id,
                address=self.settings.address_of_replica,
                release=self._build["version"],
                started=self._started,
                lease_s=self.settings.registry_lease_s,
                seen=seen,
                load=ReplicaLoad(
                    ready=self.readiness.is_ready,
                    waiting=self._num_waiting,
                    running=self._engine.num_running_requests,
                    versions=self.residency.stats().versions,
                    version_bytes=self.residency.stats().bytes,
                    process_bytes=self._measure(),
                ),
            ),
        )

    async def _learn(self, reference: TaskReference) -> Traffic:
        """Look up what a reference means, and keep it, so that it is answered in an outage too."""
        found = (await until_answered(partial(self.facts.traffic, (reference,), "")))[reference]
        if isinstance(found, NunatakError):
            raise found
        return found

    async def _look_up(self, reference: TaskReference) -> Traffic:
        return await self.catalog.poll(self.registry.traffic, reference)

    def _measure(self) -> int:
        """Return the memory of this process, or its last known memory without free descriptors."""
        with contextlib.suppress(OSError, psutil.Error):
            self._process_bytes = self._process.memory_info().rss
        return self._process_bytes

    @property
    def _num_waiting(self) -> int:
        return max(0, int(self.admission.requests.total) - self._engine.num_running_requests)

    async def _tell_other_backbones(self) -> None:
        """Say that no task of the registry can answer here, which may be a forgotten option."""
        with contextlib.suppress(NunatakError):
            manifests = [it.manifest for it in await self.catalog.poll(self.registry.tasks)]
            if manifests and not any(map(self.backbones.serves, manifests)):
                names = " and ".join(sorted({it.backbone.name for it in manifests}))
                logger.warning("no task answers here: they all run on %s (`backbone`)", names)

    async def _join(self) -> None:
        """Join the replicas before the first request, so that no wait can miss this process."""
        ask = partial(self.catalog.poll, self.registry.generation)
        self._membership.see(await until_answered(ask))
        await self._membership.beat()

    async def follow_own_change(self) -> None:
        """Let requests from now on see a change that this process has made."""
        try:
            await self.facts.renew()
        except StoreUnavailableError:
            self.facts.invalidate()

    async def _registry_has_changed(self, found: Generation) -> None:
        # Confirmed only afterwards: from then on no request may get what was known before.
        await self.facts.renew()
        self._membership.see(found)
        self._holding.look()

    async def _warm_up(self) -> None:
        known = self.backbones.for_rows()
        for backbone in self.backbones:
            tasks = await asyncio.to_thread(on_own_thread, warm_up_tasks, backbone)
            for rows in warm_up_batches(backbone, tasks, known=known[backbone.digest]):
                self._engine.submit(rows)
                for row in rows:
                    backbone_answer(await row.future)

    def _fail(self, error: EngineFailedError) -> None:
        # Batches and loads may both report the same lost device.
        if self.readiness.state is State.FAILED:
            return
        self.readiness.move_to(State.FAILED)
        self._on_fatal(error)

    def _check_following(self, following: asyncio.Task[None]) -> None:
        error = None if following.cancelled() else following.exception()
        if error is not None:
            followed = following.get_name()
            logger.critical("%s cannot be followed any more", followed, exc_info=error)
            reason = f"{followed} cannot be followed any more: {type(error).__name__}"
            self._fail(EngineFailedError(reason))
