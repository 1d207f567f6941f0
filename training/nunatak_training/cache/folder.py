"""Where training keeps what it can compute again."""

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "NUNATAK_CACHE"


def default_cache_folder() -> Path:
    """Return what NUNATAK_CACHE says, else a folder in the user's cache directory."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else platformdirs.user_cache_path("nunatak")
