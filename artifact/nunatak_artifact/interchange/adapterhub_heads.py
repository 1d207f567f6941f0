"""The heads of AdapterHub folders as ours.

A head of `adapters`' own classes is a chain of dropout, linear map and non-linearity, whose
positions in the chain are the names of its tensors. It may read the base's pooler instead of the
first token. Folders of transformers' classes hold the head of the class, as peft's do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nunatak_artifact.errors import InvalidFolderError, UnsupportedImportError
from nunatak_artifact.interchange.adapter_folder import check_tensors
from nunatak_artifact.interchange.adapterhub_config import FlexibleHead, HeadFile
from nunatak_artifact.interchange.meanings import problem_type_of
from nunatak_artifact.interchange.peft_config import task_type_of_class
from nunatak_artifact.interchange.peft_heads import (
    DENSE,
    OUTPUT,
    head_parameters,
    head_spec,
    pooler_parameters,
    stored_head,
    stored_shapes,
)
from nunatak_model import Backbone, HeadKind, HeadSpec, Pooling
from nunatak_registry import ProblemType

HEAD_TYPES = {
    "classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "multilabel_classification": HeadKind.SEQUENCE_CLASSIFICATION,
    "tagging": HeadKind.TOKEN_CLASSIFICATION,
    "question_answering": HeadKind.QUESTION_ANSWERING,
}
FIRST_LINEAR, SECOND_LINEAR = "1", "4"
"""Positions in the chain: dropout, linear, tanh, dropout, linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedHead:
    """A head in our terms, with what the folder says about its labels."""

    spec: HeadSpec
    parameters: Mapping[str, Tensor]
    problem_type: ProblemType | None
    id2label: Mapping[int, str] | None


def flexible_head(
    folder: Path,
    head: FlexibleHead,
    name: str,
    tensors: Mapping[str, Tensor],
    backbone: Backbone,
) -> ImportedHead:
    """Read the head of a model class of `adapters`.

    Raises:
        UnsupportedImportError: what no head of ours computes.
        TensorMismatchError: the tensors are not those of the configuration.
        ForeignBackboneError: it reads a pooler that the backbone does not have.
    """
    spec = _spec(folder, head)
    positions = {OUTPUT: FIRST_LINEAR}
    if head.layers == 2:
        positions = {OUTPUT: SECOND_LINEAR, DENSE: FIRST_LINEAR}
    maps = {ours: f"heads.{name}.{position}" for ours, position in positions.items()}
    check_tensors(folder, tensors, stored_shapes(maps, spec, width=backbone.config.hidden_width))
    parameters = head_parameters(maps, tensors)
    if head.use_pooler:
        parameters |= pooler_parameters(folder, backbone)
    return ImportedHead(
        spec=spec,
        parameters=parameters,
        problem_type=_problem_type(head, spec),
        id2label=_inverted(head.label2id),
    )


def class_head(
    folder: Path, file: HeadFile, encoder: str, tensors: Mapping[str, Tensor], backbone: Backbone
) -> ImportedHead:
    """Read the head of a model class of transformers.

    Raises:
        UnsupportedImportError: a class whose head we do not have.
        InvalidFolderError: the tensors are not those of the class.
        ForeignBackboneError: it reads a pooler that the backbone does not have.
    """
    task_type = task_type_of_class(file.model_class)
    if task_type is None:
        raise _unsupported(folder, f"its head is that of {file.model_class[:80]!r}")
    if file.num_labels is None:
        raise InvalidFolderError(folder.name, "its head_config.json has no num_labels")
    spec = head_spec(task_type, file.num_labels)
    maps = stored_head(encoder, task_type, saved=())
    check_tensors(folder, tensors, stored_shapes(maps, spec, width=backbone.config.hidden_width))
    parameters = head_parameters(maps, tensors)
    if spec.dense and DENSE not in maps:
        parameters |= pooler_parameters(folder, backbone)
    return ImportedHead(
        spec=spec,
        parameters=parameters,
        problem_type=problem_type_of(spec, None),
        id2label=_inverted(file.label2id),
    )


def _spec(folder: Path, head: FlexibleHead) -> HeadSpec:
    kind = HEAD_TYPES.get(head.head_type)
    if kind is None:
        raise _unsupported(folder, f"its head is of type {head.head_type[:80]!r}")
    most = 2 if kind is HeadKind.SEQUENCE_CLASSIFICATION else 1
    if not 1 <= head.layers + head.use_pooler <= most or head.layers < 1:
        pooler = " over the pooler" if head.use_pooler else ""
        raise _unsupported(folder, f"its {head.head_type} head has {head.layers} layers{pooler}")
    if head.layers == 2 and head.activation_function != "tanh":
        raise _unsupported(folder, f"its head activates by {head.activation_function!r}")
    if not head.bias:
        raise _unsupported(folder, "its head has no offset (bias)")
    if kind.fixed_outputs not in {None, head.num_labels}:
        raise _unsupported(folder, f"its {head.head_type} head has {head.num_labels} outputs")
    if kind.reads_tokens:
        return HeadSpec(kind=kind, num_labels=head.num_labels)
    dense = head.layers == 2 or head.use_pooler
    return HeadSpec(kind=kind, num_labels=head.num_labels, pooling=Pooling.FIRST, dense=dense)


def _inverted(label2id: Mapping[str, int] | None) -> dict[int, str] | None:
    return None if label2id is None else {number: label for label, number in label2id.items()}


def _problem_type(head: FlexibleHead, spec: HeadSpec) -> ProblemType | None:
    if spec.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    if head.head_type == "multilabel_classification":
        return ProblemType.MULTI_LABEL
    return ProblemType.REGRESSION if head.num_labels == 1 else ProblemType.SINGLE_LABEL


def _unsupported(folder: Path, found: str) -> UnsupportedImportError:
    return UnsupportedImportError(
        folder.name,
        found,
        "expected a head for classification, tagging or question answering, of one linear map or, "
        "for classification, two with tanh between them",
    )
