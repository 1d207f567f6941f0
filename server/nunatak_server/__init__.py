"""The server: one process that answers for many tasks from one frozen backbone."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("nunatak")
