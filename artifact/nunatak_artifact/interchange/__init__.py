"""Task versions to and from the formats of neighbours: transformers, and the hub's layout."""

from nunatak_artifact.interchange.imported import ImportedTask
from nunatak_artifact.interchange.transformers_export import export_transformers
from nunatak_artifact.interchange.transformers_import import import_transformers

__all__ = ["ImportedTask", "export_transformers", "import_transformers"]
