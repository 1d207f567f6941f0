"""What an importer hands on, whatever format it read."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from nunatak_model import BranchSpec
from nunatak_registry import ProblemType


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """What a foreign folder holds, in our terms.

    Everything `draft_task` needs but name, probe inputs and provenance.
    """

    spec: BranchSpec
    labels: tuple[str, ...]
    problem_type: ProblemType | None
    parameters: Mapping[str, Tensor]
    """In float32."""
    max_length: int | None
    """In tokens; None: the folder does not say."""
    source: str
    """What was found, for people."""
