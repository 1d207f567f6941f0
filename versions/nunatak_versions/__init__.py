"""Task versions: from manifest and bytes to a branch that may be served, and back."""

from nunatak_versions.versions import (
    PARAMETERS_ROLE,
    LoadedTask,
    Provenance,
    VersionDraft,
    branch_spec,
    draft_quantized,
    draft_task,
    head_record,
    load_task,
    probe_tolerance,
)

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
