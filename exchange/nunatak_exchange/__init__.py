"""Exchange with other programs: import of their folders, export of tasks, added backbones."""

from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import Checkpoint, check_new
from nunatak_exchange.checks import ImportChoices, ImportedTask
from nunatak_exchange.hub import (
    HuggingFaceHub,
    draft_pulled,
    fetched,
    is_folder,
    push,
    read_hub_folder,
    write_hub_folder,
)
from nunatak_exchange.importing import draft_imported, import_folder, kind_of
from nunatak_exchange.peft_folders import export_peft, import_peft
from nunatak_exchange.sentence_transformers_export import export_sentence_transformers
from nunatak_exchange.transformers_export import (
    check_exportable,
    export_backbone,
    export_transformers,
)
from nunatak_exchange.transformers_import import import_transformers

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
    "export_sentence_transformers",
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
