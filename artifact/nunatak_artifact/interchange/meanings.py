"""What the logits of a foreign model mean: its labels, its kind of problem, its longest input."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from nunatak_artifact.errors import UnknownLabelsError
from nunatak_artifact.interchange.adapter_folder import has_file, read_model
from nunatak_model import Backbone, HeadKind, HeadSpec
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


def problem_type_of(head: HeadSpec, said: ProblemType | None) -> ProblemType | None:
    """What decides the scores, by the rule of transformers' text classification pipeline.

    One logit is a number only where that is said; else it is the logit of a label, for sigmoid.
    """
    if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    default = ProblemType.MULTI_LABEL if head.num_labels == 1 else ProblemType.SINGLE_LABEL
    return said or default


def labels_in_order(
    folder: Path,
    head: HeadSpec,
    *,
    given: tuple[str, ...] | None,
    stored: Mapping[int, str] | None,
) -> tuple[str, ...]:
    """The labels of the logits: those that the caller names, else those of the folder.

    Heads whose kind decides what they give, such as question answering, have none.

    Raises:
        UnknownLabelsError: there are none, too few, too many, or two that are equal.
    """
    if head.kind.fixed_outputs is not None:
        return ()
    if given is None and stored is None:
        raise UnknownLabelsError(folder.name, head.num_labels, "the folder names none")
    numbered = dict(enumerate(given)) if given is not None else dict(stored or {})
    labels = tuple(numbered[index] for index in sorted(numbered))
    if sorted(numbered) != list(range(head.num_labels)) or len(set(labels)) != len(labels):
        found = ", ".join(f"{index}: {label}" for index, label in sorted(numbered.items()))
        raise UnknownLabelsError(folder.name, head.num_labels, f"got {found[:200]!r}")
    return labels
