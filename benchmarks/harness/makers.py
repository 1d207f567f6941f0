"""Tasks for the measurements: random but valid parameters.

A published task has everything that training would publish, also a probe. A server therefore loads
and checks the task like any other. Baselines get the same tasks in the layouts of transformers and
peft.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Lora, Method, TopK
from nunatak_exchange.peft_folders import export_peft
from nunatak_exchange.transformers_export import export_transformers, merged_weights
from nunatak_model import (
    Backbone,
    BranchSpec,
    HeadSpec,
    build_branch,
    default_head,
    initial_parameters,
    quantize_backbone,
    stored_parameters,
)
from nunatak_registry import Registry
from nunatak_registry.store import number_draft
from nunatak_versions import (
    PARAMETERS_ROLE,
    LoadedTask,
    Provenance,
    VersionDraft,
    draft_quantized,
    draft_task,
    head_record,
    load_task,
)

LABELS = ("calm", "urgent", "other")
HEAD = HeadSpec(num_labels=len(LABELS), pooling=Pooling.FIRST, dense=True)
"""The head of transformers' classes, so that every baseline can load the tasks."""
PROBE = ("Where is my parcel, and who can tell me more about it?",)
MAX_LENGTH = 130
"""Tokens of the longest texts of the scenarios, with the two special tokens."""
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
LORA, TOP_LAYER, BOTTLENECK = (
    Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
    TopK(num_layers=1),
    Bottleneck(size=64),
)
DEVIATION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """A task to make. Equal plans make equal parameters."""

    name: str
    method: Method
    seed: int
    head: HeadSpec = HEAD
    probe: tuple[str, ...] = PROBE
    is_merged: bool = False
    """Whether the task owns all weights, and answers as the task of its method does."""


def plans(count: int, methods: Sequence[Method], *, prefix: str = "task") -> list[TaskPlan]:
    """Return the plans of `count` tasks, with the methods in turns."""
    return [
        TaskPlan(name=f"{prefix}-{number:05d}", method=methods[number % len(methods)], seed=number)
        for number in range(count)
    ]


def draft(plan: TaskPlan, backbone: Backbone) -> VersionDraft:
    """Return the task of a plan: the initial parameters of training, plus noise."""
    spec = BranchSpec(method=plan.method, head=plan.head)
    generator = torch.Generator().manual_seed(plan.seed)
    fresh = initial_parameters(spec, backbone, generator=generator)
    parameters = {
        # The pooler stays equal to the backbone's: peft cannot mix tasks with their own poolers.
        name: tensor
        if name.startswith("head.dense.")
        else tensor + DEVIATION * torch.randn(tensor.shape, generator=generator)
        for name, tensor in fresh.items()
    }
    if plan.is_merged:
        branch = build_branch(spec, backbone.config, parameters)
        spec = BranchSpec(method=Full(), head=plan.head)
        wanted = initial_parameters(spec, backbone, generator=generator)
        merged = merged_weights(branch, backbone)
        parameters = {name: merged[name] for name in wanted}
        # A full model without any change of the encoder is refused; one bit is a change.
        name = next(it for it in wanted if it.startswith("layers.") and it.endswith("weight"))
        parameters[name] = parameters[name].nextafter(torch.tensor(torch.inf))
    return draft_task(
        plan.name,
        method=spec.method,
        head=head_record(spec.head, LABELS),
        parameters=stored_parameters(spec, parameters, backbone),
        backbone=backbone,
        max_length=min(MAX_LENGTH, backbone.config.max_tokens),
        probe_inputs=plan.probe,
        provenance=Provenance(created_at=CREATED_AT),
    )


def publish(
    registry: Registry, backbone: Backbone, task: str, seed: int, *, method: Method = TOP_LAYER
) -> TaskManifest:
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=len(LABELS))
    made = draft(TaskPlan(name=task, method=method, seed=seed, head=head), backbone)
    return registry.publish(made.manifest, made.blobs)


def publish_missing(
    folder: Path, wanted: Iterable[TaskPlan], backbone: Backbone, *, integers: bool = False
) -> int:
    """Publish the tasks that the registry does not have yet; return their number.

    With `integers` the tasks run on the quantized form of the backbone, as `nunatak task convert`
    makes them.
    """
    quantized = quantize_backbone(backbone) if integers else None
    with Registry.open(folder) as registry:
        known = {summary.name for summary in registry.tasks()}
        missing = [plan for plan in wanted if plan.name not in known]
        for plan in missing:
            made = draft(plan, backbone)
            if quantized is not None:
                numbered = number_draft(made.manifest, 1)
                made = draft_quantized(numbered, made.blobs[PARAMETERS_ROLE], quantized)
            registry.publish(made.manifest, made.blobs)
    return len(missing)


def export_full_model(plan: TaskPlan, backbone: Backbone, folder: Path) -> Path:
    """Write the task as a folder of transformers, with low-rank updates merged into the encoder."""
    target = folder / "full" / plan.name
    if not target.exists():
        export_transformers(_loaded(plan, backbone), target, backbone)
    return target


def export_adapter(plan: TaskPlan, backbone: Backbone, folder: Path) -> Path:
    target = folder / "peft" / plan.name
    if not target.exists():
        export_peft(_loaded(plan, backbone), target, backbone)
    return target


def _loaded(plan: TaskPlan, backbone: Backbone) -> LoadedTask:
    made = draft(plan, backbone)
    return load_task(number_draft(made.manifest, 1), made.blobs[PARAMETERS_ROLE], backbone)
