"""Task versions: from manifest and bytes to a branch that may be served, and back."""

from nunatak_versions.drafting import (
    PARAMETERS_ROLE,
    Provenance,
    VersionDraft,
    draft_quantized,
    draft_task,
    head_record,
)
from nunatak_versions.loading import LoadedTask, branch_spec, load_task, probe_tolerance

__all__ = [
    "PARAMETERS_ROLE",
    "LoadedTask",
    "Provenance",
    "VersionDraft",
    "branch_spec",
    "draft_quantized",
    "draft_task",
    "head_record",
    "load_task",
    "probe_tolerance",
]
