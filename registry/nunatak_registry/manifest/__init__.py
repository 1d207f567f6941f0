"""The manifest: everything that is true of one task version, as immutable JSON.

A `TaskDraft` is what a publisher hands in; the registry adds the version and thereby makes it a
`TaskManifest`. Both are frozen, and neither accepts a field it does not know.
"""

from nunatak_registry.manifest.base import Record
from nunatak_registry.manifest.evidence import (
    MAX_CONFUSION_CELLS,
    ConfusionCell,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    ProbeInput,
    ProbeLogits,
    ProbeRecord,
    ProbeText,
    RecipeRecord,
)
from nunatak_registry.manifest.heads import (
    MAX_LABELS,
    TANH_BLOCK,
    Activation,
    DenseBlockRecord,
    HeadKind,
    HeadNorm,
    HeadRecord,
    Label,
    Pooling,
    ProblemType,
)
from nunatak_registry.manifest.methods import (
    AdaptedBlocks,
    AdapterInput,
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    LoraRecord,
    LoraTarget,
    MethodRecord,
    Norms,
    TopKRecord,
)
from nunatak_registry.manifest.task import (
    MIN_WINDOW_TOKENS,
    BackboneRecord,
    BlobRecord,
    ParameterCounts,
    TaskDraft,
    TaskManifest,
    TensorDtype,
)

__all__ = [
    "MAX_CONFUSION_CELLS",
    "MAX_LABELS",
    "MIN_WINDOW_TOKENS",
    "TANH_BLOCK",
    "Activation",
    "AdaptedBlocks",
    "AdapterInput",
    "BackboneRecord",
    "BlobRecord",
    "BottleneckRecord",
    "ConfusionCell",
    "ConfusionRecord",
    "DataRecord",
    "DenseBlockRecord",
    "FullRecord",
    "HeadKind",
    "HeadNorm",
    "HeadOnlyRecord",
    "HeadRecord",
    "Label",
    "LoraRecord",
    "LoraTarget",
    "MethodRecord",
    "MetricRecord",
    "Norms",
    "ParameterCounts",
    "Pooling",
    "ProbeInput",
    "ProbeLogits",
    "ProbeRecord",
    "ProbeText",
    "ProblemType",
    "RecipeRecord",
    "Record",
    "TaskDraft",
    "TaskManifest",
    "TensorDtype",
    "TopKRecord",
]
