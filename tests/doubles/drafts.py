"""Tiny valid task drafts with their bytes, for tests of anything that publishes."""

import hashlib
import json
import random
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from nunatak_contract.enums import IntervalMethod, Pooling, TensorDtype
from nunatak_contract.evidence import (
    CalibrationRecord,
    ConfusionCell,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    ProbeRecord,
    ReliabilityBin,
    ReliabilityRecord,
    ThresholdCurve,
)
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import (
    BackboneRecord,
    BlobRecord,
    ParameterCounts,
    TaskDraft,
    TaskManifest,
)
from nunatak_contract.methods import HeadOnly
from nunatak_registry.store import Registry

DRAFT_BACKBONE = "b" * 64
"""The digest of the backbone of all drafts."""
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
WIDTH = 4
EVIDENCE = "d" * 64
"""The digest of the data of all evidence."""
NOTE = "made by <b>Ann</b>"
LABELS = ("no", "yes")
_RELIABILITY = ReliabilityRecord(
    data_digest=EVIDENCE,
    num_examples=200,
    error_before=0.25,
    error_after=0.05,
    bins_before=(ReliabilityBin(count=200, score=0.95, share_right=0.7),),
    bins_after=(
        ReliabilityBin(count=50, score=0.6, share_right=0.5),
        ReliabilityBin(count=150, score=0.75, share_right=0.8),
    ),
)
CALIBRATION = CalibrationRecord(
    temperature=2.5,
    dev=_RELIABILITY,
    curves=(
        ThresholdCurve(
            label="no", num_expected=40, points=((0.9, 10, 10), (0.7, 30, 27), (0.2, 100, 40))
        ),
        ThresholdCurve(label="yes", num_expected=0, points=()),
    ),
)
"""What a draft of `make_draft` may say about its scores."""


def _metric(name: str, value: float, interval: tuple[float, float] | None = None) -> MetricRecord:
    return MetricRecord(
        name=name,
        value=value,
        interval=interval,
        interval_method=interval and IntervalMethod.WILSON,
        data_digest=EVIDENCE,
        num_examples=1200,
    )


def evidence_of(draft: TaskDraft) -> TaskDraft:
    """Return the draft with scores, a confusion matrix, its data and a note."""
    calm, urgent, *_ = draft.head.labels
    cells = (
        ConfusionCell(truth=calm, predicted=calm, count=90),
        ConfusionCell(truth=calm, predicted=urgent, count=7),
        ConfusionCell(truth=urgent, predicted=urgent, count=31),
    )
    update = {
        "metrics": (_metric("accuracy", 0.91), _metric("macro F1", 0.875)),
        "test_metrics": (_metric("accuracy", 0.9, (0.88, 0.92)),),
        "confusion": ConfusionRecord(data_digest=EVIDENCE, cells=cells),
        "data": DataRecord(
            name="tickets", train_digest=EVIDENCE, dev_digest=EVIDENCE, num_train=5000, num_dev=1200
        ),
        "note": NOTE,
    }
    return draft.model_copy(update=update)


def safetensors_bytes(tensors: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> bytes:
    """Return a safetensors file of float32 tensors, given as shape and values."""
    header: dict[str, object] = {}
    body = b""
    for name, (shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}f", *values)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        body += data
    return with_header(json.dumps(header).encode(), body)


def with_header(header: bytes, body: bytes = b"") -> bytes:
    """Return a file with these bytes as header, valid or not."""
    return struct.pack("<Q", len(header)) + header + body


def make_draft(
    task: str = "intent", seed: int = 0, *, note: str = ""
) -> tuple[TaskDraft, dict[str, bytes]]:
    """Return a head-only draft and its bytes; equal arguments give equal content.

    `seed` decides the parameters, so two tasks of one seed share their blob.
    """
    source = random.Random(seed)
    values = [source.uniform(-1, 1) for _ in range(len(LABELS) * WIDTH)]
    data = safetensors_bytes(
        {
            "head.output.weight": ((len(LABELS), WIDTH), values),
            "head.output.bias": ((len(LABELS),), [0.0, 0.0]),
        }
    )
    digest = hashlib.sha256(data).hexdigest()
    draft = TaskDraft(
        task=task,
        head=HeadRecord(labels=LABELS, pooling=Pooling.MEAN, dense=False),
        method=HeadOnly(),
        split_depth=2,
        backbone=BackboneRecord(
            name="tiny", digest=DRAFT_BACKBONE, num_layers=2, hidden_width=WIDTH
        ),
        tokenizer_digest="c" * 64,
        max_length=16,
        dtype=TensorDtype.FLOAT32,
        parameter_counts=ParameterCounts(branch=0, head=len(LABELS) * (WIDTH + 1)),
        blobs=(BlobRecord(sha256=digest, size_bytes=len(data)),),
        probe=ProbeRecord(inputs=("hello",), logits=((0.0, 1.0),)),
        created_at=CREATED_AT,
        note=note,
    )
    return draft, {"parameters": data}


def draft_with(**blobs: bytes) -> TaskDraft:
    """Return a draft that describes these blobs, by role, with any content."""
    draft, _ = make_draft()
    records = tuple(
        BlobRecord(role=role, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        for role, data in blobs.items()
    )
    return draft.model_copy(update={"blobs": records})


def publish_one(registry: Registry, task: str = "intent", seed: int = 0) -> TaskManifest:
    return registry.publish(*make_draft(task, seed))


def publish_many(registry: Registry, num_versions: int) -> None:
    """Publish versions 1 to `num_versions` of the task "intent"."""
    for seed in range(num_versions):
        publish_one(registry, seed=seed)
