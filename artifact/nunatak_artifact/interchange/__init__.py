"""Exchange with other programs: their folders as our tasks, and our tasks as their folders."""

from nunatak_artifact.interchange.adapterhub_import import import_adapterhub
from nunatak_artifact.interchange.imported import ImportedTask
from nunatak_artifact.interchange.peft_export import export_peft
from nunatak_artifact.interchange.peft_import import import_peft

__all__ = ["ImportedTask", "export_peft", "import_adapterhub", "import_peft"]
