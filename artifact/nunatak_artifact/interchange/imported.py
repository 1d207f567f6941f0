"""What an importer hands on, whatever format it read, and what its caller may decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from torch import Tensor

from nunatak_model import BranchSpec
from nunatak_registry import ProblemType, RankingScore


class LogitUse(StrEnum):
    """What the one logit of a model is for."""

    CLASSIFICATION = "classification"
    RANKING = "ranking"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportChoices:
    """What the caller decides; None: as the folder says."""

    labels: tuple[str, ...] | None = None
    """In the order of the logits."""
    problem_type: ProblemType | None = None
    """Of a sequence classification; a model with one is no ranking."""
    logit_use: LogitUse | None = None
    allows_other_base: bool = False
    """Whether an adapter is taken that names another base than the backbone, or none."""


AS_THE_FOLDER_SAYS: Final = ImportChoices()


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
    score: RankingScore = RankingScore.SIGMOID
    """Of a ranking: what its logits become."""
    base: str | None = None
    """Of an adapter: the base model that the folder names."""
