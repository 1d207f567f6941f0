"""The errors that a task may fail with, of all packages that it passes through.

Not named in `errors` itself, which is light: the packages of models and artefacts load torch.
"""

from typing import Final

from nunatak_artifact import ArtifactError
from nunatak_model import ModelError
from nunatak_registry import RegistryError
from nunatak_server.errors.base import ServerError

KnownError = RegistryError | ModelError | ArtifactError | ServerError
"""Raised on purpose: it has a code, and its message may go to a caller and to the log."""
KNOWN_ERRORS: Final = (RegistryError, ModelError, ArtifactError, ServerError)
"""The same, as `except` takes them."""
