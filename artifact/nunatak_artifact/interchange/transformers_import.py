"""From a fine-tuned checkpoint of transformers to a branch on the backbone it came from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor

from nunatak_artifact.errors import InvalidFolderError, UnsupportedImportError
from nunatak_artifact.interchange.checkpoint_folder import (
    read_object,
    read_weights,
    require_folder,
)
from nunatak_artifact.interchange.compatibility import check_shape, check_tokenizer
from nunatak_artifact.interchange.divergence import Divergence, find_divergence
from nunatak_artifact.interchange.imported import ImportedTask
from nunatak_artifact.interchange.transformers_layout import (
    CLASS_SUFFIXES,
    family_of,
    from_stored,
    head_names,
    head_spec,
    stored_shapes,
    unread_names,
)
from nunatak_artifact.records import head_record
from nunatak_model import (
    Backbone,
    BranchSpec,
    HeadKind,
    HeadSpec,
    dedicated_parameters,
    parameter_shapes,
)
from nunatak_registry import ProblemType

SHOWN_NAMES = 3
MOST_TOKENS = 1_000_000


class _Settings(BaseModel):
    """What `config.json` says of the head; the rest of it describes the encoder."""

    model_config = ConfigDict(frozen=True)

    architectures: Annotated[tuple[str, ...], Field(min_length=1, max_length=1)]
    id2label: dict[int, str] | None = None
    problem_type: ProblemType | None = None
    sentence_transformers: dict[str, JsonValue] | None = None
    """Written by cross-encoders, whose one logit ranks pairs."""

    @property
    def class_name(self) -> str:
        return self.architectures[0]


def import_transformers(
    folder: Path, backbone: Backbone, *, labels: tuple[str, ...] | None = None
) -> ImportedTask:
    """Keep of a fine-tuned checkpoint what is not, bit for bit, the backbone's.

    The split depth is the first layer that differs. The classes are those for sequence
    classification (one label, several, or regression), token classification and question
    answering; the one logit of a cross-encoder becomes a ranking.

    Args:
        folder: as `save_pretrained` writes it, with its tokenizer; safetensors only.
        backbone: the one it was trained from, in float32.
        labels: in the order of the logits, in place of the folder's own names.

    Raises:
        InvalidFolderError: a file is missing or malformed, or a tensor is.
        UnsupportedImportError: another class, pickled weights, or tensors that nothing reads.
        ForeignBackboneError: another shape or tokenizer than the backbone's.
        UnsupportedBackboneError: a variant of the family whose layers are computed differently.
    """
    require_folder(folder)
    raw = read_object(folder, "config.json")
    settings = _settings(folder, raw)
    kind = _head_kind(folder, settings.class_name)
    check_shape(folder, raw, backbone)
    check_tokenizer(folder, backbone)
    stored = {_modern(name): tensor for name, tensor in read_weights(folder).items()}
    head = _checked_head(folder, stored, kind, settings, backbone)
    tensors = from_stored(stored, family_of(backbone.config), head, backbone.config)
    found = find_divergence(tensors, backbone)
    spec = BranchSpec(method=found.method(), head=head)
    parameters = {
        name: tensors[name].to(torch.float32, copy=True)
        for name in parameter_shapes(spec, backbone.config)
    }
    problem_type = _problem_type(settings, head)
    return ImportedTask(
        spec=spec,
        labels=_checked_labels(folder, head, problem_type, labels or _own_labels(settings, head)),
        problem_type=problem_type,
        parameters=parameters,
        max_length=_max_length(folder),
        source=f"{settings.class_name}, {_report(found, head, parameters, backbone)}",
    )


def _settings(folder: Path, raw: dict[str, JsonValue]) -> _Settings:
    try:
        return _Settings.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidFolderError(folder.name, f"config.json, {where}: {first['msg']}") from error


def _head_kind(folder: Path, class_name: str) -> HeadKind:
    for suffix, kind in CLASS_SUFFIXES.items():
        if class_name.endswith(suffix):
            return kind
    raise UnsupportedImportError(
        folder.name,
        f"it is a {class_name}",
        f"expected a class whose name ends in {', '.join(CLASS_SUFFIXES)}",
    )


def _modern(name: str) -> str:
    # Checkpoints converted from TensorFlow call the parameters of norms gamma and beta.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _checked_head(
    folder: Path,
    stored: Mapping[str, Tensor],
    kind: HeadKind,
    settings: _Settings,
    backbone: Backbone,
) -> HeadSpec:
    """The head, if the checkpoint holds just it and an encoder of the backbone's shape."""
    family = family_of(backbone.config)
    output = stored.get(head_names(family, kind)["head.output.bias"])
    num_outputs = kind.fixed_outputs or (1 if output is None else output.numel())
    if settings.sentence_transformers is not None and num_outputs == 1:
        kind = HeadKind.RANKING
    head = head_spec(kind, num_outputs=num_outputs)
    shapes = stored_shapes(family, head, backbone.config)
    if missing := shapes.keys() - stored.keys():
        raise InvalidFolderError(folder.name, f"its weights lack {_shown(missing)}")
    if unread := stored.keys() - shapes.keys() - unread_names(family):
        raise UnsupportedImportError(
            folder.name,
            f"a {settings.class_name} does not read {_shown(unread)}",
            "save the fine-tuned model alone with save_pretrained",
        )
    if wrong := [name for name, shape in shapes.items() if tuple(stored[name].shape) != shape]:
        raise InvalidFolderError(
            folder.name,
            f"{wrong[0]} has shape {list(stored[wrong[0]].shape)}, "
            f"expected {list(shapes[wrong[0]])}",
        )
    return head


def _problem_type(settings: _Settings, head: HeadSpec) -> ProblemType | None:
    """What transformers itself takes a model for: one output without further word is a number."""
    if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    if settings.problem_type is not None:
        return settings.problem_type
    return ProblemType.REGRESSION if head.num_labels == 1 else ProblemType.SINGLE_LABEL


def _own_labels(settings: _Settings, head: HeadSpec) -> tuple[str, ...]:
    """The folder's names; transformers leaves out those that are its own numbered ones."""
    if head.kind.fixed_outputs is not None:
        return ()
    names = settings.id2label or {}
    return tuple(names.get(index, f"LABEL_{index}") for index in range(head.num_labels))


def _checked_labels(
    folder: Path, head: HeadSpec, problem_type: ProblemType | None, labels: tuple[str, ...]
) -> tuple[str, ...]:
    wanted = 0 if head.kind.fixed_outputs is not None else head.num_labels
    if len(labels) != wanted:
        raise InvalidFolderError(
            folder.name, f"its head needs {wanted} labels, got {len(labels)}: name each, in order"
        )
    try:
        head_record(head, labels, problem_type)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidFolderError(
            folder.name, f"its labels do not fit its head: {problem}"
        ) from error
    return labels


def _max_length(folder: Path) -> int | None:
    """`model_max_length`, which stands at 1e30 where nobody has set it."""
    path = folder / "tokenizer_config.json"
    length = read_object(folder, path.name).get("model_max_length") if path.is_file() else None
    return length if type(length) is int and 0 < length <= MOST_TOKENS else None


def _report(
    found: Divergence, head: HeadSpec, parameters: Mapping[str, Tensor], backbone: Backbone
) -> str:
    own = sum(tensor.numel() for tensor in parameters.values())
    shared = 1 - own / dedicated_parameters(backbone.config, head)
    return f"{found.describe()}; {shared:.0%} of the parameters stay shared"


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN_NAMES
    return ", ".join(ordered[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
