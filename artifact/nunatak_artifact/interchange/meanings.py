"""What the logits of a foreign model mean: its labels, its kind of problem, its longest input."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from nunatak_artifact.errors import UnknownLabelsError
from nunatak_artifact.interchange.adapter_folder import has_file, read_model
from nunatak_model import Backbone
from nunatak_registry import ProblemType


class ModelConfigFile(BaseModel):
    """What we read of the `config.json` of a trained model: what its logits mean."""

    model_config = ConfigDict(frozen=True)

    id2label: dict[NonNegativeInt, str] | None = None
    problem_type: ProblemType | None = None


class TokenizerConfigFile(BaseModel):
    """What we read of `tokenizer_config.json`; "no limit" is a float of about 1e30."""

    model_config = ConfigDict(frozen=True)

    model_max_length: Annotated[float, Field(ge=1)] | None = None


def read_model_config(folder: Path) -> ModelConfigFile:
    """Read the `config.json` beside the adapter, if there is one."""
    if not has_file(folder, "config.json"):
        return ModelConfigFile()
    return read_model(folder, "config.json", ModelConfigFile)


def read_max_length(folder: Path, backbone: Backbone) -> int | None:
    """The longest input that the tokenizer's settings in the folder ask for, if they say."""
    if not has_file(folder, "tokenizer_config.json"):
        return None
    length = read_model(folder, "tokenizer_config.json", TokenizerConfigFile).model_max_length
    return int(length) if length is not None and length <= backbone.config.max_tokens else None


def labels_in_order(
    folder: Path,
    num_labels: int,
    *,
    given: tuple[str, ...] | None,
    stored: Mapping[int, str] | None,
) -> tuple[str, ...]:
    """The labels of the logits: those that the caller names, else those of the folder.

    Raises:
        UnknownLabelsError: there are none, too few, too many, or two that are equal.
    """
    if given is None and stored is None:
        raise UnknownLabelsError(folder.name, num_labels, "the folder names none")
    labels = given or ()
    if given is None and stored is not None:
        if sorted(stored) != list(range(len(stored))):
            raise UnknownLabelsError(folder.name, num_labels, f"got numbers {sorted(stored)[:20]}")
        labels = tuple(stored[index] for index in range(len(stored)))
    if len(labels) != num_labels or len(set(labels)) != len(labels):
        raise UnknownLabelsError(folder.name, num_labels, f"got {', '.join(labels)[:200]!r}")
    return labels
