"""Tiny task versions that a real server can load: random parameters, true probes."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

import torch
from torch import Tensor

from nunatak_model import (
    Backbone,
    Bottleneck,
    BranchSpec,
    Full,
    HeadOnly,
    HeadSpec,
    Lora,
    Method,
    Row,
    TextInput,
    TopK,
    build_branch,
    forward,
    initial_parameters,
    tensors_to_bytes,
)
from nunatak_registry import (
    BackboneRecord,
    BlobRecord,
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    HeadRecord,
    LoraRecord,
    MethodRecord,
    ParameterCounts,
    Pooling,
    ProbeRecord,
    Registry,
    TaskDraft,
    TaskManifest,
    TensorDtype,
    TopKRecord,
)

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = ("calm", "urgent", "other")
PROBE_INPUTS: tuple[TextInput, ...] = ("where is my parcel?", ("a question", "an answer"))
MAX_LENGTH = 48
TOP_LAYER = TopK(num_layers=1)


def tiny_task(
    backbone: Backbone,
    *,
    task: str = "tone",
    method: Method = TOP_LAYER,
    labels: Sequence[str] = LABELS,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
) -> tuple[TaskDraft, dict[str, bytes]]:
    """Return a draft on `backbone` and its bytes; equal arguments give equal content."""
    spec = spec_of(backbone, method, num_labels=len(labels))
    parameters = random_parameters(spec, backbone, seed=seed)
    branch = build_branch(spec, backbone.config, parameters)
    data = tensors_to_bytes(parameters)
    logits = logits_alone(backbone, spec, parameters, PROBE_INPUTS, max_length=max_length)
    digest = hashlib.sha256(data).hexdigest()
    draft = TaskDraft(
        task=task,
        head=HeadRecord(
            labels=tuple(labels),
            pooling=Pooling(spec.head.pooling.value),
            dense=spec.head.dense,
        ),
        method=record_of(method),
        split_depth=branch.split_depth,
        backbone=BackboneRecord(
            name=backbone.name,
            digest=backbone.digest,
            num_layers=backbone.config.num_layers,
            hidden_width=backbone.config.hidden_width,
        ),
        tokenizer_digest=backbone.tokenizer.digest,
        max_length=max_length,
        dtype=TensorDtype.FLOAT32,
        parameter_counts=ParameterCounts(
            branch=branch.branch_parameters, head=branch.head_parameters
        ),
        blobs=(BlobRecord(sha256=digest, size_bytes=len(data)),),
        probe=ProbeRecord(inputs=PROBE_INPUTS, logits=tuple(map(tuple, logits))),
        created_at=CREATED_AT,
    )
    return draft, {"parameters": data}


def publish_tiny_task(
    registry: Registry,
    backbone: Backbone,
    *,
    task: str = "tone",
    method: Method = TOP_LAYER,
    labels: Sequence[str] = LABELS,
    seed: int = 0,
) -> TaskManifest:
    """Publish `tiny_task` and return its manifest."""
    draft, blobs = tiny_task(backbone, task=task, method=method, labels=labels, seed=seed)
    return registry.publish(draft, blobs)


def spec_of(backbone: Backbone, method: Method, *, num_labels: int) -> BranchSpec:
    """Return what the branch of a tiny task is made of."""
    head = HeadSpec(num_labels=num_labels, pooling=backbone.pooling, dense=backbone.has_dense)
    return BranchSpec(method=method, head=head)


def random_parameters(spec: BranchSpec, backbone: Backbone, *, seed: int) -> dict[str, Tensor]:
    """Return parameters away from where training starts, so that every method has an effect."""
    generator = torch.Generator().manual_seed(seed)
    parameters = initial_parameters(spec, backbone, generator=generator)
    return {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in parameters.items()
    }


def logits_alone(
    backbone: Backbone,
    spec: BranchSpec,
    parameters: dict[str, Tensor],
    inputs: Sequence[TextInput],
    *,
    max_length: int = MAX_LENGTH,
) -> list[list[float]]:
    """Return the oracle: each input's logits, computed with nothing else in the batch."""
    branch = build_branch(spec, backbone.config, parameters)
    rows: list[list[float]] = []
    for encoding in backbone.tokenizer.encode(inputs, max_length=max_length):
        with torch.inference_mode():
            (logits,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        rows.append([float(logit) for logit in logits])
    return rows


def record_of(method: Method) -> MethodRecord:
    """Return a method as the manifest records it."""
    match method:
        case TopK():
            return TopKRecord(num_layers=method.num_layers)
        case HeadOnly():
            return HeadOnlyRecord()
        case Bottleneck():
            return BottleneckRecord(size=method.size, first_layer=method.first_layer)
        case Lora():
            return LoraRecord(
                rank=method.rank,
                alpha=method.alpha,
                targets=tuple(target.value for target in method.targets),
                first_layer=method.first_layer,
            )
        case Full():
            return FullRecord()
