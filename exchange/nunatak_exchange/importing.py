"""Import of a folder of any known kind, up to a draft for the registry."""

from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from nunatak_contract.enums import HeadKind, ImportFormat, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import NO_DEFAULT_LABEL
from nunatak_contract.manifest import MAX_NOTE_CHARS
from nunatak_contract.names import check_task_name
from nunatak_contract.record import problems_of
from nunatak_exchange import checks
from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import CONFIG, Checkpoint
from nunatak_exchange.hub import MANIFEST
from nunatak_exchange.peft_config import CONFIG_FILE
from nunatak_exchange.peft_folders import import_peft
from nunatak_exchange.reference import PROBE_INPUTS
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import Backbone
from nunatak_model.tokenizer_folder import VOCABULARY
from nunatak_versions.versions import Provenance, VersionDraft, draft_task, head_record

LEAST_TOKENS = 4
"""Special tokens alone fill shorter inputs."""
MOST_NAMED = 5
FILES = ("*.json", "*.safetensors", VOCABULARY)


def kind_of(
    checkpoint: Checkpoint,
) -> Literal[ImportFormat.TRANSFORMERS, ImportFormat.PEFT, ImportFormat.ADAPTERHUB]:
    folder = checkpoint.folder
    if not folder.is_dir():
        raise NunatakError("invalid_folder", folder=str(folder), reason="there is no such folder")
    if checkpoint.has(MANIFEST):
        raise checkpoint.refuse(
            f"it has a {MANIFEST} and is no foreign folder", "use `nunatak task pull`"
        )
    if checkpoint.has(CONFIG_FILE):
        # Both kinds of adapters have a file of this name.
        is_peft = checkpoint.fields(CONFIG_FILE).get("peft_type") is not None
        return ImportFormat.PEFT if is_peft else ImportFormat.ADAPTERHUB
    if checkpoint.has(CONFIG):
        return ImportFormat.TRANSFORMERS
    inner = sorted(
        {it.parent.name for name in (CONFIG_FILE, CONFIG) for it in folder.glob(f"*/{name}")}
    )
    advice = f"; name one of its folders: {', '.join(inner[:MOST_NAMED])}" if inner else ""
    raise checkpoint.invalid(
        f"it has neither {CONFIG_FILE} (an adapter) nor {CONFIG} (a model){advice}"
    )


def import_folder(
    checkpoint: Checkpoint,
    backbone: Backbone,
    *,
    kind: ImportFormat = ImportFormat.AUTO,
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> checks.ImportedTask:
    """Read a folder of the given kind. Without a kind, the files of the folder decide.

    Raises:
        NunatakError: `foreign_backbone`, the folder has another shape, tokenizer or base than the
            backbone, or an adapter names no base.
        NunatakError: `invalid_folder`, `corrupt_file`, `tensor_mismatch`, `unknown_labels` or
            `pickled_weights`, a part of the folder is missing, unsound or left over.
        NunatakError: `unsupported_import`, no method or head here computes the same.
    """
    checks.check_exact(backbone)
    match kind_of(checkpoint) if kind is ImportFormat.AUTO else kind:
        case ImportFormat.TRANSFORMERS:
            return import_transformers(checkpoint, backbone, choices)
        case ImportFormat.PEFT:
            imported = import_peft(checkpoint, backbone, choices)
        case ImportFormat.ADAPTERHUB | ImportFormat.AUTO:
            imported = import_adapterhub(checkpoint, backbone, choices)
    if not choices.allows_other_base:
        checks.Import(checkpoint, backbone, choices).check_base(imported.base)
    return imported


def draft_imported(
    task: str,
    imported: checks.ImportedTask,
    backbone: Backbone,
    *,
    origin: str,
    created_at: datetime,
    note: str = "",
    choices: checks.ImportChoices = checks.AS_THE_FOLDER_SAYS,
) -> VersionDraft:
    """Describe an imported task as a version to publish, without data and scores."""
    check_task_name(task)
    _check_inputs(imported.spec.head.kind, origin, choices)
    default_label = choices.default_label
    if default_label == NO_DEFAULT_LABEL and NO_DEFAULT_LABEL not in imported.labels:
        default_label = None
    try:
        head = head_record(
            imported.spec.head,
            imported.labels,
            imported.problem_type,
            imported.score,
            default_label=default_label,
            thresholds=choices.thresholds,
        )
    except ValidationError as error:
        problem = problems_of(error)[0][1]
        raise NunatakError(
            "invalid_folder", folder=origin, reason=f"labels and head do not fit: {problem}"
        ) from error
    most = backbone.config.max_tokens
    length = min(imported.max_length or most, most)
    if length < LEAST_TOKENS:
        reason = f"its longest input is {length} tokens, expected at least {LEAST_TOKENS}"
        raise NunatakError("invalid_folder", folder=origin, reason=reason)
    # The user's remark is kept whole.
    found = f"imported from {origin}: {imported.source}"[: max(0, MAX_NOTE_CHARS - len(note) - 2)]
    return draft_task(
        task,
        method=imported.spec.method,
        head=head,
        reads=choices.reads,
        on_long=choices.on_long,
        parameters=imported.parameters,
        backbone=backbone,
        max_length=length,
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=created_at, note="; ".join(filter(None, (found, note)))),
    )


def _check_inputs(kind: HeadKind, origin: str, choices: checks.ImportChoices) -> None:
    problem = None
    if kind.reads_tokens and choices.on_long not in {None, OnLong.WINDOWS}:
        problem = f"long texts as windows, got on_long {choices.on_long}"
    elif choices.reads is not None and kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        problem = f"inputs of its own kind, got reads {choices.reads}; leave it out"
    if problem is not None:
        reason = f"a {kind} task reads {problem}"
        raise NunatakError("invalid_folder", folder=origin, reason=reason)
