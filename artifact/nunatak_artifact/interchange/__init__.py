"""Exchange with other programs: import of their folders, and export of our tasks."""

from nunatak_artifact.checkpoint import Checkpoint, check_new
from nunatak_artifact.interchange.adapterhub_import import import_adapterhub
from nunatak_artifact.interchange.checks import ImportChoices, ImportedTask
from nunatak_artifact.interchange.hub import (
    HuggingFaceHub,
    draft_pulled,
    fetched,
    is_folder,
    push,
    read_hub_folder,
    write_hub_folder,
)
from nunatak_artifact.interchange.importing import draft_imported, import_folder, kind_of
from nunatak_artifact.interchange.peft_export import export_peft
from nunatak_artifact.interchange.peft_import import import_peft
from nunatak_artifact.interchange.transformers_export import (
    check_exportable,
    export_backbone,
    export_transformers,
)
from nunatak_artifact.interchange.transformers_import import import_transformers

__all__ = [
    "Checkpoint",
    "HuggingFaceHub",
    "ImportChoices",
    "ImportedTask",
    "check_exportable",
    "check_new",
    "draft_imported",
    "draft_pulled",
    "export_backbone",
    "export_peft",
    "export_transformers",
    "fetched",
    "import_adapterhub",
    "import_folder",
    "import_peft",
    "import_transformers",
    "is_folder",
    "kind_of",
    "push",
    "read_hub_folder",
    "write_hub_folder",
]
