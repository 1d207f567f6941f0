"""Folders of other programs: safe writing and safe reading.

`new_folder` writes a folder whole or not at all. `read_checkpoint` reads the weights of a whole
model: one safetensors file, or shards with an index. `read_model_config` and the functions after it
find the labels, the problem type and the longest input. `read_bytes`, `read_model` and
`read_weights` read each file once, within limits.
"""

import json
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor

from nunatak_artifact.reference import check_names, corrupt_file, refusal
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, HeadSpec, InvalidTensorsError, tensors_from_bytes
from nunatak_model.checkpoint import WEIGHTS, WEIGHTS_INDEX
from nunatak_registry import InvalidArtifactError
from nunatak_registry.blobs.tensors import read_header

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
PICKLE_ADVICE: Final = (
    "if you trust it, load it once with transformers and save it with save_pretrained, which "
    "writes safetensors"
)
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_WEIGHT_BYTES = 4 * 1024**3
MAX_HEADER_BYTES = 1024 * 1024
"""The header of safetensors names every tensor; a model of 60 layers has 100 KiB."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
Shapes = Mapping[str, tuple[int, ...]]
Model = TypeVar("Model", bound=BaseModel)


def check_new(target: Path) -> None:
    """Raise `folder_in_use` if there is a file, or a folder that holds something."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise NunatakError("folder_in_use", folder=str(target))


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Yield a folder to fill, and move it to `target` if the block succeeds.

    Raises:
        NunatakError: `folder_in_use`, `target` is a file, or a folder that is not empty.
    """
    check_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the move at the end stays within one file system.
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield made
        for path in (made, *made.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        made.replace(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_json(folder: Path, name: str, fields: Mapping[str, object]) -> None:
    """Write an indented JSON file."""
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")


class _Index(BaseModel):
    model_config = ConfigDict(frozen=True)

    weight_map: dict[str, str]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors checkpoint, in its stored format.

    Raises:
        NunatakError: `invalid_folder`, a file is missing, leads out of the folder, or is not sound.
        NunatakError: `pickled_weights`, there are only pickled weights.
    """
    tensors = dict[str, Tensor]()
    for name in weight_files(folder) or [_missing_weights(folder, WEIGHTS, PICKLE_ADVICE)]:
        data = read_bytes(folder, name, limit=MAX_WEIGHT_BYTES)
        if (size := int.from_bytes(data[:8], "little")) > MAX_HEADER_BYTES:
            problem = f"has a header of {size} bytes, at most {MAX_HEADER_BYTES} are read"
            raise corrupt_file(folder, name, problem)
        try:
            tensors |= tensors_from_bytes(data)
        except InvalidTensorsError as error:
            raise corrupt_file(folder, name, f"is no safetensors: {error}") from error
    return tensors


def weight_files(
    folder: Path, *, single: str = WEIGHTS, index: str = WEIGHTS_INDEX
) -> Sequence[str]:
    """The files of a checkpoint: the single file, else the shards of the index, if there are any.

    Raises:
        NunatakError: as `read_model`.
    """
    if has_file(folder, single):
        return [single]
    if has_file(folder, index):
        return sorted(set(read_model(folder, index, _Index).weight_map.values()))
    return []


def _missing_weights(folder: Path, name: str, advice: str) -> str:
    """Return the name of a missing file, for the reader to refuse, unless there is a pickle."""
    stem = "" if name == WEIGHTS else name.partition(".")[0]
    found = (it.name for it in folder.glob(f"*{stem}.*") if it.suffix in PICKLE_SUFFIXES)
    if pickle := min(found, default=None):
        raise NunatakError("pickled_weights", folder=folder.name, file=pickle, advice=advice)
    return name


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Read every floating-point tensor, in its stored format.

    Raises:
        NunatakError: as `read_tensors`; also `unsupported_import`, numbers of another format.
    """
    # Old checkpoints also store the position ids, as integers.
    floats = {
        name: it for name, it in read_tensors(folder).items() if not name.endswith(".position_ids")
    }
    for name, tensor in floats.items():
        if tensor.dtype not in FLOATS:
            found = f"tensor {name!r} is {tensor.dtype}"
            raise refusal(folder, found, "save the model in float32, float16 or bfloat16")
    return floats


class ModelConfigFile(BaseModel):
    """The fields that we read of a trained model's `config.json`: the meaning of its logits."""

    model_config = ConfigDict(frozen=True)

    architectures: tuple[str, ...] | None = None
    id2label: dict[str, JsonValue] | None = None
    """As the file has it; `labels_in_order` reads it, unless the caller names the labels."""
    problem_type: str | None = None
    classifier_pooling: str | None = None


class TokenizerConfigFile(BaseModel):
    """The fields that we read of `tokenizer_config.json`; "no limit" is a float of about 1e30."""

    model_config = ConfigDict(frozen=True)

    model_max_length: Annotated[float, Field(ge=1)] | None = None


def read_model_config(folder: Path) -> ModelConfigFile:
    """Read the `config.json` next to the adapter, if there is one."""
    if not has_file(folder, "config.json"):
        return ModelConfigFile()
    return read_model(folder, "config.json", ModelConfigFile)


def read_max_length(folder: Path, backbone: Backbone) -> int | None:
    """The longest input in the folder's tokenizer settings; None if not set."""
    if not has_file(folder, "tokenizer_config.json"):
        return None
    length = read_model(folder, "tokenizer_config.json", TokenizerConfigFile).model_max_length
    return int(length) if length is not None and length <= backbone.config.max_tokens else None


def read_problem_type(folder: Path, named: str | None) -> ProblemType | None:
    """Return the problem type that a `config.json` names.

    Raises:
        NunatakError: `unsupported_import`, transformers knows no such problem.
    """
    if named is None or named in set(ProblemType):
        return None if named is None else ProblemType(named)
    raise refusal(
        folder,
        f"problem_type in config.json is {named!r}",
        f"expected one of {', '.join(ProblemType)}; say which with --problem-type",
    )


def problem_type_of(folder: Path, head: HeadSpec, said: ProblemType | None) -> ProblemType | None:
    """Return the problem type, by the rule of transformers' text classification pipeline.

    One logit is a regression only if `said` names one; else it is a label's logit, for sigmoid.

    Raises:
        NunatakError: `unsupported_import`, it is a regression with several logits.
    """
    if head.kind is not HeadKind.SEQUENCE_CLASSIFICATION:
        return None
    if said is ProblemType.REGRESSION and head.num_labels > 1:
        raise refusal(
            folder,
            f"it is a regression to {head.num_labels} numbers",
            "a regression task gives one number; train one model for each, or name another "
            "--problem-type if the logits are those of labels",
        )
    default = ProblemType.MULTI_LABEL if head.num_labels == 1 else ProblemType.SINGLE_LABEL
    return said or default


def labels_in_order(
    folder: Path,
    head: HeadSpec,
    *,
    given: tuple[str, ...] | None,
    stored: Mapping[str, JsonValue] | None,
) -> tuple[str, ...]:
    """Return the labels of the logits: the caller's labels, else the folder's.

    A head whose kind fixes the meaning of its outputs, such as question answering, has no labels.

    Raises:
        NunatakError: `unknown_labels`, there are none, too few, too many, or two that are equal.
        NunatakError: `unsupported_import`, the caller names labels of a kind that has none.
    """
    if head.kind.fixed_outputs is not None:
        if given is not None:
            raise refusal(
                folder,
                f"a {head.kind.replace('_', ' ')} task has no labels, got {', '.join(given)}",
                "leave out --labels",
            )
        return ()
    if given is None and stored is None:
        raise NunatakError(
            "unknown_labels",
            folder=folder.name,
            num_labels=head.num_labels,
            found="the folder names none",
        )
    named: Mapping[str, JsonValue] = (
        {str(index): label for index, label in enumerate(given)} if given is not None else stored
    ) or {}
    labels = [
        label for index in range(head.num_labels) if isinstance(label := named.get(str(index)), str)
    ]
    if len(named) != head.num_labels or len(set(labels)) != head.num_labels:
        found = json.dumps(dict(named), ensure_ascii=False)
        raise NunatakError(
            "unknown_labels",
            folder=folder.name,
            num_labels=head.num_labels,
            found=f"got {found[:200]}",
        )
    return tuple(labels)


def has_file(folder: Path, name: str) -> bool:
    """Whether the folder has an entry of this name, file or not."""
    return (folder / name).is_symlink() or (folder / name).exists()


def read_bytes(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file of the folder.

    Raises:
        NunatakError: `invalid_folder`, there is no such file.
        NunatakError: `escaping_file`, the file is a link out of the folder.
        NunatakError: `corrupt_file`, the file is not regular, or longer than `limit` bytes.
    """
    path = folder / name
    if not has_file(folder, name):
        raise NunatakError("invalid_folder", folder=folder.name, reason=f"it has no file {name}")
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise corrupt_file(folder, name, "is a link that leads back to itself") from error
    if not target.is_relative_to(folder.resolve()):
        raise NunatakError("escaping_file", folder=folder.name, file=name)
    # Reading a pipe could wait without end.
    if not target.is_file():
        raise corrupt_file(folder, name, "must be a regular file")
    size = target.stat().st_size
    if size > limit:
        raise corrupt_file(folder, name, f"has {size} bytes, at most {limit} are read")
    return target.read_bytes()


def read_model(folder: Path, name: str, model: type[Model]) -> Model:
    """Read a JSON file of the folder as `model`.

    Raises:
        NunatakError: `invalid_folder`, as `read_bytes`; a file that does not fit the model is
            corrupt.
    """
    data = read_bytes(folder, name)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise corrupt_file(folder, name, f"does not read: {where}: {first['msg']}") from (error)


def read_weights(folder: Path, stem: str, *, advice: str) -> dict[str, Tensor]:
    """Read `stem`.safetensors as float32 tensors that own their memory.

    The limits equal the registry's limits for stored blobs. `advice` explains how to get a
    safetensors file if the folder has only a pickle.

    Raises:
        NunatakError: `pickled_weights`, there are only pickled weights.
        NunatakError: `invalid_folder`, as `read_bytes`; a file that is no safetensors is corrupt.
    """
    name = f"{stem}.safetensors"
    if not has_file(folder, name):
        _missing_weights(folder, name, advice)
    data = read_bytes(folder, name, limit=MAX_WEIGHT_BYTES)
    try:
        read_header(data)
    except InvalidArtifactError as error:
        raise corrupt_file(folder, name, f"is no sound safetensors: {error}") from error
    return {key: tensor.to(torch.float32) for key, tensor in tensors_from_bytes(data).items()}


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], expected: Shapes) -> None:
    """Refuse tensors that are not exactly `expected`.

    Raises:
        NunatakError: `tensor_mismatch`, the tensors differ from `expected`.
    """
    wrong = [
        f"{name} is {list(tensor.shape)}, expected {list(expected[name])}"
        for name, tensor in tensors.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    check_names(
        folder,
        missing=expected.keys() - tensors.keys(),
        unread=tensors.keys() - expected.keys(),
        misshapen=wrong,
    )
