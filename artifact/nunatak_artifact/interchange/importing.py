"""Import of a folder of any known kind, up to a draft for the registry."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from nunatak_artifact.drafting import Draft, Provenance, draft_task
from nunatak_artifact.errors import InvalidFolderError, UnsupportedImportError
from nunatak_artifact.interchange.adapterhub_import import import_adapterhub
from nunatak_artifact.interchange.compatibility import (
    AS_THE_FOLDER_SAYS,
    CONFIG,
    ImportChoices,
    ImportedTask,
    check_base,
    check_exact,
)
from nunatak_artifact.interchange.folders import has_file, read_model
from nunatak_artifact.interchange.hub import MANIFEST
from nunatak_artifact.interchange.peft_config import CONFIG_FILE
from nunatak_artifact.interchange.peft_import import import_peft
from nunatak_artifact.interchange.transformers_import import import_transformers
from nunatak_artifact.records import head_record
from nunatak_contract.enums import HeadKind, OnLong, ProblemType
from nunatak_contract.names import check_task_name
from nunatak_model import Backbone, TextInput

FILES = ("*.json", "*.safetensors")
PROBE_INPUTS: Final[tuple[TextInput, ...]] = (
    "Thanks!",
    "Where is my parcel? It was due on Monday.",
    ("Who wrote the report?", "The report was written by Ada Lovelace in London in 1843."),
    "Third reminder: 3 of the 12 invoices (7, 9 and 11) are still open! Please call back at once.",
)
"""A text, a sentence, a pair and something longer: foreign folders bring no examples of theirs."""


class ForeignKind(StrEnum):
    """The kinds of folder that can be imported."""

    TRANSFORMERS = "transformers"
    PEFT = "peft"
    ADAPTERHUB = "adapterhub"


class _AdapterConfig(BaseModel):
    """Both kinds of adapters have a file of this name; only peft's names a type of its own."""

    model_config = ConfigDict(frozen=True)

    peft_type: str | None = None


def kind_of(folder: Path) -> ForeignKind:
    """Tell the kind of a folder by its files.

    Raises:
        InvalidFolderError: nothing in it is known.
        UnsupportedImportError: it is a task of our own, which is pulled.
    """
    if not folder.is_dir():
        raise InvalidFolderError(str(folder), "there is no such folder")
    if has_file(folder, MANIFEST):
        raise UnsupportedImportError(
            folder.name, f"it has a {MANIFEST} and is no foreign folder", "use `nunatak task pull`"
        )
    if has_file(folder, CONFIG_FILE):
        is_peft = read_model(folder, CONFIG_FILE, _AdapterConfig).peft_type is not None
        return ForeignKind.PEFT if is_peft else ForeignKind.ADAPTERHUB
    if has_file(folder, CONFIG):
        return ForeignKind.TRANSFORMERS
    raise InvalidFolderError(
        folder.name, f"it has neither {CONFIG_FILE} (an adapter) nor {CONFIG} (a model)"
    )


def import_folder(
    folder: Path,
    backbone: Backbone,
    *,
    kind: ForeignKind | None = None,
    choices: ImportChoices = AS_THE_FOLDER_SAYS,
) -> ImportedTask:
    """Read a folder of the given kind, or of the kind that its files tell.

    Raises:
        ForeignBackboneError: an adapter names another base than the backbone, or none.
        ArtifactError: it cannot be imported; the message says what to do.
        ModelError: its parts do not fit the backbone.
    """
    check_exact(backbone)
    match kind or kind_of(folder):
        case ForeignKind.TRANSFORMERS:
            return import_transformers(folder, backbone, choices)
        case ForeignKind.PEFT:
            imported = import_peft(folder, backbone, choices)
        case ForeignKind.ADAPTERHUB:
            imported = import_adapterhub(folder, backbone, choices)
    if not choices.allows_other_base:
        check_base(folder, imported.base, backbone)
    return imported


def draft_imported(  # noqa: PLR0913 - an imported task, and what the caller adds to it
    task: str,
    imported: ImportedTask,
    backbone: Backbone,
    *,
    origin: str,
    created_at: datetime,
    note: str = "",
    default_label: str | None = None,
    on_long: OnLong | None = None,
) -> Draft:
    """Describe an imported task as a version to publish; it has neither data nor scores.

    Of two exclusive labels, the first is the default label unless the caller names one.

    Raises:
        InvalidNameError: `task` is no name of a task.
        InvalidFolderError: labels and head contradict each other.
        NoEffectError: the parameters leave every layer as the backbone has it.
        ModelError: the parameters do not fit, or are not finite.
    """
    check_task_name(task)
    if default_label is None and _is_one_of_two(imported):
        default_label = imported.labels[0]
    _check_head(imported, origin, default_label, on_long)
    most = backbone.config.max_tokens
    found = f"imported from {origin}: {imported.source}"
    return draft_task(
        task,
        spec=imported.spec,
        labels=imported.labels,
        problem_type=imported.problem_type,
        default_label=default_label,
        on_long=on_long,
        score=imported.score,
        parameters=imported.parameters,
        backbone=backbone,
        max_length=min(imported.max_length or most, most),
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=created_at, note="; ".join(filter(None, (found, note)))),
    )


def _is_one_of_two(imported: ImportedTask) -> bool:
    is_classification = imported.spec.head.kind is HeadKind.SEQUENCE_CLASSIFICATION
    is_single = imported.problem_type in {None, ProblemType.SINGLE_LABEL}
    return is_classification and is_single and len(imported.labels) == 2


def _check_head(
    imported: ImportedTask, origin: str, default_label: str | None, on_long: OnLong | None
) -> None:
    kind = imported.spec.head.kind
    if kind.reads_tokens and on_long not in {None, OnLong.WINDOWS}:
        raise InvalidFolderError(
            origin, f"a {kind} task reads long texts as windows, got on_long {on_long}"
        )
    try:
        head_record(
            imported.spec.head, imported.labels, imported.problem_type, default_label=default_label
        )
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidFolderError(origin, f"labels and head do not fit: {problem}") from error
