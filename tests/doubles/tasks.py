"""Tiny task versions that a real server can load: random parameters, true probes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from nunatak_contract.enums import HeadKind, LinearMap, ProblemType, Reads
from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    Row,
    TextInput,
    build_branch,
    default_head,
    forward,
    initial_parameters,
)
from nunatak_registry import Registry
from nunatak_versions import Provenance, draft_task, head_record

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = ("calm", "urgent", "other")
PROBE_INPUTS: tuple[TextInput, ...] = ("where is my parcel?", ("a question", "an answer"))
MAX_LENGTH = 48
TOP_LAYER = TopK(num_layers=1)
EVERY_FORM: list[Method] = [
    HeadOnly(),
    TopK(num_layers=1),
    TopK(num_layers=3),
    Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    Lora(rank=2, first_layer=2, alpha=16.0, targets=QUERY_AND_VALUE),
    Lora(rank=5, first_layer=2, targets=tuple(LinearMap), alpha=16.0),
    Ia3(),
    Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=(), first_layer=2),
    Bottleneck(size=4),
    Bottleneck(size=4, first_layer=3),
    Full(),
]
"""Every form of a method on a backbone of four layers; the last one has no trunk."""


EVERY_METHOD: list[Method] = [
    TopK(num_layers=2),
    HeadOnly(),
    Bottleneck(size=4),
    Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    Ia3(),
    Full(),
]


def tiny_task(
    backbone: Backbone,
    *,
    task: str = "tone",
    method: Method = TOP_LAYER,
    labels: Sequence[str] = LABELS,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
    problem_type: ProblemType | None = None,
    thresholds: Mapping[str, float] | None = None,
    reads: Reads | None = None,
) -> tuple[TaskDraft, dict[str, bytes]]:
    """Return a draft on `backbone` and its bytes; equal arguments give equal content."""
    has_labels = kind.fixed_outputs is None
    spec = spec_of(backbone, method, num_labels=len(labels), kind=kind)
    draft = draft_task(
        task,
        method=spec.method,
        head=head_record(
            spec.head, tuple(labels) if has_labels else (), problem_type, thresholds=thresholds
        ),
        reads=reads,
        parameters=random_parameters(spec, backbone, seed=seed),
        backbone=backbone,
        max_length=max_length,
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=CREATED_AT),
    )
    return draft.manifest, dict(draft.blobs)


def numbered(draft: TaskDraft, **changes: object) -> TaskManifest:
    return TaskManifest.model_validate({**draft.model_dump(), "version": 1, **changes})


def publish_tiny_task(registry: Registry, backbone: Backbone, **options: Any) -> TaskManifest:  # noqa: ANN401 - of `tiny_task`
    return registry.publish(*tiny_task(backbone, **options))


def publish_names(registry: Registry, backbone: Backbone) -> TaskManifest:
    """Publish the task `names`, which finds entities `X`."""
    labels, kind = ("O", "B-X", "I-X"), HeadKind.TOKEN_CLASSIFICATION
    return publish_tiny_task(registry, backbone, task="names", labels=labels, kind=kind)


def spec_of(
    backbone: Backbone,
    method: Method,
    *,
    num_labels: int,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
) -> BranchSpec:
    outputs = kind.fixed_outputs or num_labels
    head = default_head(backbone, kind=kind, num_labels=outputs)
    return BranchSpec(method=method, head=head)


def random_parameters(spec: BranchSpec, backbone: Backbone, *, seed: int) -> dict[str, Tensor]:
    """Return parameters that differ from fresh ones, so that every method has an effect."""
    generator = torch.Generator().manual_seed(seed)
    parameters = initial_parameters(spec, backbone, generator=generator)
    return {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in parameters.items()
    }


def random_branch(
    backbone: Backbone,
    method: Method,
    *,
    num_labels: int = 2,
    seed: int = 0,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
) -> Branch:
    spec = spec_of(backbone, method, num_labels=num_labels, kind=kind)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=seed))


def logits_alone(
    backbone: Backbone,
    inputs: Sequence[TextInput],
    *,
    method: Method = TOP_LAYER,
    num_labels: int = len(LABELS),
    seed: int = 0,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
) -> list[list[float]]:
    """Return the oracle of a tiny task: each input's logits, with nothing else in the batch."""
    branch = random_branch(backbone, method, num_labels=num_labels, seed=seed, kind=kind)
    rows: list[list[float]] = []
    for encoding in backbone.tokenizer.encode(inputs, max_length=MAX_LENGTH):
        with torch.inference_mode():
            (logits,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        rows.append([float(logit) for logit in logits.flatten()])
    return rows
