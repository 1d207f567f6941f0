"""The backbones of one server, their device and number format; a version names its backbone.

One process, one queue and one memory serve the tasks of all backbones. A batch is one forward pass,
so all of its rows belong to one backbone. Rows of different backbones share nothing, also if their
tokens are equal.

The rows of the warm-up, which a server computes before it is ready, prove that the process can
compute.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never

import torch

from nunatak_contract.enums import HeadKind, Kernels, ServingDtype
from nunatak_contract.errors import NunatakError, invalid_settings
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    build_branch,
    convert_branch,
    default_head,
    embedding_branch,
    initial_parameters,
    keep_lowest_layers,
    load_backbone,
    model_size,
    number_format,
    on_own_thread,
    pack_backbone,
    with_speeds,
)
from nunatak_model.layer import OwnLayer
from nunatak_server.engine.compute import BackboneInUse
from nunatak_server.scheduler.rows import ANONYMOUS, PendingRow, Priority, RowBackbone, row_spec
from nunatak_server.settings import ServerSettings
from nunatak_versions.versions import backbone_mismatch

FindFault = Callable[[torch.device], str | None]
"""Returns why a CUDA device cannot compute; None if it can."""
FindCapability = Callable[[torch.device], tuple[int, int]]
"""Returns the compute capability of a CUDA device."""

KNOWN: Final = re.compile(r"cpu|cuda(:\d{1,3})?")
NVIDIA_DEVICE: Final = Path("/dev/nvidia0")
"""Exists where the NVIDIA driver shows a device to this system or container."""
BFLOAT16_CAPABILITY: Final = (8, 0)
"""Compute capability from which a device has products in bfloat16 (Ampere)."""

logger = logging.getLogger(__name__)


def cuda_fault(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    found = torch.cuda.device_count()
    if (device.index or 0) >= found:
        return f"torch finds {found} CUDA devices here, numbered from 0"
    try:
        # A build of torch finds all devices, but has kernels for some generations only.
        ones = torch.ones(8, 8, device=device)
        (ones @ ones).sum().item()
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return f"this build of torch cannot compute on it ({error})"
    return None


def resolve_device(
    name: str, *, find_fault: FindFault = cuda_fault, nvidia_device: Path = NVIDIA_DEVICE
) -> torch.device:
    """Return the device of that name; `auto` is CUDA if it can compute, else the CPU."""
    if name == "auto":
        return _best_device(find_fault, nvidia_device)
    if not KNOWN.fullmatch(name):
        raise invalid_settings(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    device = torch.device(name)
    fault = find_fault(device) if device.type == "cuda" else None
    if fault is not None:
        raise invalid_settings(f"device is {name!r}, but {fault}")
    return device


def _best_device(find_fault: FindFault, nvidia_device: Path) -> torch.device:
    device = torch.device("cuda")
    fault = find_fault(device)
    if fault is None:
        return device
    if torch.cuda.is_available():
        logger.warning("serving from the CPU, though torch finds a CUDA device: %s", fault)
    elif nvidia_device.exists():
        logger.warning(
            "serving from the CPU, though %s exists: %s; this build of torch may lack CUDA, or "
            "need a newer driver",
            nvidia_device, fault,
        )  # fmt: skip
    return torch.device("cpu")


def resolve_dtype(
    choice: ServingDtype,
    device: torch.device,
    *,
    find_capability: FindCapability = torch.cuda.get_device_capability,
) -> torch.dtype:
    """Return the number format for serving on that device.

    Without products in bfloat16 that is float32, as some backbones have numbers beyond float16.
    """
    match choice:
        case ServingDtype.AUTO:
            return torch.bfloat16 if _has_bfloat16(device, find_capability) else torch.float32
        case ServingDtype.FLOAT32:
            return torch.float32
        case ServingDtype.BFLOAT16:
            if device.type == "cuda" and not _has_bfloat16(device, find_capability):
                logger.warning("%s emulates bfloat16, which is slow; use float16", device)
            return torch.bfloat16
        case ServingDtype.FLOAT16:
            return torch.float16
        case _:
            assert_never(choice)


def _has_bfloat16(device: torch.device, find_capability: FindCapability) -> bool:
    return device.type == "cuda" and find_capability(device) >= BFLOAT16_CAPABILITY


def describe_device(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device} ({torch.cuda.get_device_name(device)}, capability {major}.{minor})"


NOISE = 0.05
"""Two products of equal speed differ by so much."""


class Backbones:
    """The default backbone, which also answers embeddings without a model's name, and the others.

    Raises `invalid_settings` if two have one name or one digest, so nothing tells them apart.
    """

    def __init__(self, default: Backbone, others: Sequence[Backbone] = ()) -> None:
        self.default = default
        self.others = tuple(others)
        self._by_digest = {it.digest: it for it in self}
        self._in_use = {it.digest: BackboneInUse(it) for it in self}
        names = ", ".join(it.name for it in self)
        count = 1 + len(self.others)
        if len(self._by_digest) < count or len({it.name for it in self}) < count:
            raise invalid_settings(
                "backbone: each backbone of a server needs its own name and its own "
                f"weights, got {names}; leave one out"
            )

    def __iter__(self) -> Iterator[Backbone]:
        return iter((self.default, *self.others))

    def serves(self, manifest: TaskManifest) -> bool:
        return manifest.backbone.digest in self._by_digest

    @property
    def max_tokens(self) -> int:
        return max(it.config.max_tokens for it in self)

    def of(self, manifest: TaskManifest) -> Backbone:
        found = self._by_digest.get(manifest.backbone.digest)
        if found is None:
            raise backbone_mismatch(manifest, self)
        return found

    def in_use(self, backbone: Backbone) -> BackboneInUse:
        return self._in_use[backbone.digest]

    def named(self, name: str) -> Backbone:
        for backbone in self:
            if backbone.name == name:
                return backbone
        raise NunatakError("model_not_found", served=", ".join(it.name for it in self))

    def with_digest(self, digest: str) -> Backbone:
        return self._by_digest[digest]

    def for_rows(self) -> Mapping[str, RowBackbone]:
        largest = max(map(_layer_parameters, self))
        return {
            it.digest: RowBackbone(
                digest=it.digest,
                num_layers=it.config.num_layers,
                token_cost=_layer_parameters(it) / largest,
            )
            for it in self
        }


def _layer_parameters(backbone: Backbone) -> float:
    """Return the parameters of all layers: each is multiplied once for each token."""
    size = model_size(backbone.config, embedding_branch(backbone).spec.head)
    return size.per_layer * size.num_layers


def load_serving_backbone(settings: ServerSettings) -> Backbone:
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    backbone = load_backbone(settings.backbone, dtype=dtype, device=device)
    if settings.backbone_layers is not None:
        backbone = keep_lowest_layers(backbone, settings.backbone_layers)
    if settings.kernels is Kernels.AUTO:
        backbone = pack_backbone(backbone)
    logger.info(
        "serving %s on %s in %s, torch %s, fast kernels: %s",
        backbone.name,
        describe_device(device),
        str(dtype).removeprefix("torch."),
        torch.__version__,
        ", ".join(backbone.fast_kernels) or "none",
    )
    backbone = with_speeds(backbone)
    tell_speeds(backbone)
    return backbone


def tell_speeds(backbone: Backbone) -> None:
    """Log the fastest number format; warn if the format in use is slower than float32."""
    speeds = backbone.speeds
    if not speeds:
        return
    found = ", ".join(f"{name} {it:.2f}" for name, it in speeds.items())
    fastest, used = max(speeds, key=lambda it: speeds[it]), number_format(backbone)
    logger.info("speed of a product over float32: %s; the fastest is %s", found, fastest)
    if (speed := speeds.get(used, 1.0)) < 1 - NOISE:
        remedy = "serve the original" if backbone.is_quantized else "start with --dtype float32"
        logger.warning(
            "%s multiplies in %s, at %.2f times the speed of float32 on this CPU; %s for speed, or "
            "go on to save memory",
            backbone.name, used, speed, remedy,
        )  # fmt: skip


def load_serving_backbones(settings: ServerSettings) -> Backbones:
    names = settings.all_backbones()
    if len(names) > 1 and settings.backbone_layers is not None:
        problem = "backbone_layers: it cuts one backbone; leave it out, or serve one backbone"
        raise invalid_settings(problem)
    loaded = [load_serving_backbone(settings.model_copy(update={"backbone": it})) for it in names]
    return Backbones(loaded[0], loaded[1:])


def load_on_own_thread(settings: ServerSettings) -> Backbones:
    return on_own_thread(load_serving_backbones, settings)


WARM_UP_TEXT = "ready " * 128
WARM_UP_METHODS: tuple[Method, ...] = (
    HeadOnly(),
    Lora(rank=8, alpha=8.0, targets=QUERY_AND_VALUE),
    Bottleneck(size=8),
    TopK(num_layers=1),
)
"""The methods of the mixed batch that loads the kernels of a CUDA device; of each, two tasks."""
WARM_UP_TOKENS = (8, 128, 12, 96)
"""The warm-up rows have different sizes, so that the time model knows a batch's fixed time."""


def warm_up_branch(backbone: Backbone) -> Branch:
    """Return a branch whose rows run every layer in memory, for meaningless outputs."""
    branch, held = embedding_branch(backbone), backbone.layers
    missing = backbone.config.num_layers - len(held)
    if not missing:
        return branch
    return replace(
        branch,
        spec=BranchSpec(method=TopK(num_layers=missing), head=branch.spec.head),
        split_depth=len(held),
        layers={
            index: OwnLayer(weights=held[index % len(held)])
            for index in range(len(held), backbone.config.num_layers)
        },
    )


def warm_up_tasks(backbone: Backbone) -> list[Branch]:
    """Return two random tasks of each method, whose batch runs all kernels of a CUDA device.

    There are none without fast kernels, nor if layers that the tasks need are not in memory.
    """
    config = backbone.config
    if not backbone.ops.fast_kernels() or len(backbone.layers) < config.num_layers:
        return []
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2)
    generator, tasks = torch.Generator().manual_seed(0), list[Branch]()
    for method in (*WARM_UP_METHODS, *WARM_UP_METHODS):
        spec = BranchSpec(method=method, head=head)
        parameters = initial_parameters(spec, backbone, generator=generator)
        tasks.append(convert_branch(build_branch(spec, config, parameters), backbone))
    return tasks


def warm_up_batches(
    backbone: Backbone, tasks: Sequence[Branch], *, known: RowBackbone
) -> Iterator[list[PendingRow]]:
    batches = [(WARM_UP_TOKENS[0], tasks)] if tasks else []
    batches += [(num_tokens, [warm_up_branch(backbone)]) for num_tokens in WARM_UP_TOKENS]
    for num_tokens, branches in batches:
        max_length = min(num_tokens, backbone.config.max_tokens)
        (encoding,) = backbone.tokenizer.encode([WARM_UP_TEXT], max_length=max_length)
        spec = row_spec(
            encoding,
            known.num_layers,
            backbone=known,
            group=-1,
            caller=ANONYMOUS,
            priority=Priority.NORMAL,
        )
        yield [
            PendingRow(
                spec, task="warm-up", version=0, branch=it, deadline=math.inf, submitted_at=0.0
            )
            for it in branches
        ]
