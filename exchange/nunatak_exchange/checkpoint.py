"""Folders of other programs: safe reading with errors that name the folder, and safe writing.

A folder may be a stranger's. `Checkpoint` reads each file once and within limits. `new_folder`
writes a folder whole or not at all.
"""

import glob
import json
import secrets
import shutil
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import torch
from pydantic import AliasChoices, BaseModel, Field, JsonValue, ValidationError
from torch import Tensor

from nunatak_contract.errors import NunatakError
from nunatak_contract.locks import locked_folder
from nunatak_contract.record import problems_text
from nunatak_model import (
    Backbone,
    CorruptBackboneError,
    InvalidTensorsError,
    UnsupportedBackboneError,
    tensors_from_bytes,
)
from nunatak_model.branch import check_finite
from nunatak_model.checkpoint import WEIGHTS, WEIGHTS_INDEX
from nunatak_model.errors import mismatch_of
from nunatak_model.text.tokenizer import is_panic
from nunatak_model.tokenizer_folder import TOKENIZER, TOKENIZER_CONFIG
from nunatak_registry import InvalidArtifactError
from nunatak_registry.blobs.tensors import read_header

CONFIG: Final = "config.json"
UNFINISHED: Final = ".unfinished-"
FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
PICKLE_ADVICE: Final = (
    "if you trust it, load it once with transformers and save it with save_pretrained, which "
    "writes safetensors"
)
BASE_ADVICE: Final = "name the backbone it was trained from"
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""XLM-R has the largest file of the family, 17 MB."""
MAX_WEIGHT_BYTES = 4 * 1024**3
"""The registry's limit for a stored blob."""
MAX_HEADER_BYTES = 1024 * 1024
"""The header of safetensors names every tensor; a model of 60 layers has 100 KiB."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
Shapes = Mapping[str, tuple[int, ...]]
Model = TypeVar("Model", bound=BaseModel)


class Meaning(BaseModel, frozen=True):
    """What a trained model's `config.json` says about the meaning of its logits."""

    architectures: tuple[str, ...] | None = None
    id2label: dict[str, JsonValue] | None = None
    """As the file has it; `labels_in_order` reads it, unless the caller names the labels."""
    problem_type: str | None = None
    classifier_pooling: str | None = None


class _TokenizerLimit(BaseModel, frozen=True):
    model_max_length: Annotated[float, Field(ge=1)] | None = Field(
        default=None, validation_alias=AliasChoices("model_max_length", "max_len")
    )
    """ "No limit" is a float of about 1e30. Old releases wrote `max_len`."""


class _Index(BaseModel, frozen=True):
    weight_map: dict[str, str]


class Checkpoint:
    """A foreign folder. Each file of settings is read once, so that all checks see the same file.

    Errors of reading are `invalid_folder` (no such file), `escaping_file` (a link out of the
    folder) and `corrupt_file` (not regular, too long, or malformed).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = dict[str, bytes]()

    def invalid(self, reason: str) -> NunatakError:
        return NunatakError("invalid_folder", folder=self.folder.name, reason=reason)

    def corrupt(self, file: str, problem: str) -> NunatakError:
        return NunatakError("corrupt_file", folder=self.folder.name, file=file, problem=problem)

    def refuse(self, found: str, advice: str) -> NunatakError:
        return NunatakError(
            "unsupported_import", folder=self.folder.name, found=found, advice=advice
        )

    def foreign(
        self, backbone: Backbone, difference: str, advice: str = BASE_ADVICE
    ) -> NunatakError:
        return NunatakError(
            "foreign_backbone",
            folder=self.folder.name,
            backbone=backbone.name,
            difference=difference,
            advice=advice,
        )

    @contextmanager
    def backbone_errors(self) -> Generator[None]:
        try:
            yield
        except CorruptBackboneError as error:
            raise self.invalid(str(error)) from error
        except UnsupportedBackboneError as error:
            found, _, advice = str(error).partition("; ")
            raise self.refuse(found, advice or "take a checkpoint without it") from error

    @contextmanager
    def refused_by(self, library: str, action: str) -> Generator[None]:
        """Turn any error of a library, but none of our own, into a refusal of this folder."""
        try:
            yield
        except NunatakError:
            raise
        except BaseException as error:  # the libraries have no common type, and Rust may panic
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise self.refuse(
                f"{library} cannot {action} ({reason})",
                "name the backbone it was trained from, and check that the installed "
                f"{library} loads it",
            ) from error

    def has(self, name: str) -> bool:
        """Whether the folder has an entry of this name, file or not."""
        return (self.folder / name).is_symlink() or (self.folder / name).exists()

    def read(self, name: str, *, limit: int = MAX_JSON_BYTES) -> bytes:
        """Read a regular file of at most `limit` bytes; the same bytes at each call."""
        if name not in self._files or len(self._files[name]) > limit:
            self._files[name] = self.read_once(name, limit=limit)
        return self._files[name]

    def read_once(self, name: str, *, limit: int) -> bytes:
        """Read a regular file, and keep no copy."""
        if not self.has(name):
            raise self.invalid(f"it has no file {name}")
        try:
            target = (self.folder / name).resolve()
        except (OSError, RuntimeError) as error:
            raise self.corrupt(name, "is a link that leads back to itself") from error
        if not target.is_relative_to(self.folder.resolve()):
            raise NunatakError("escaping_file", folder=self.folder.name, file=name)
        # Reading a pipe could wait without end.
        if not target.is_file():
            raise self.corrupt(name, "must be a regular file")
        size = target.stat().st_size
        if size > limit:
            raise self.corrupt(name, f"has {size} bytes, at most {limit} are read")
        return target.read_bytes()

    def json(self, name: str, *, limit: int = MAX_JSON_BYTES) -> JsonValue:
        try:
            return json.loads(self.read(name, limit=limit), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise self.corrupt(name, f"is no JSON: {error}") from error

    def fields(self, name: str) -> dict[str, JsonValue]:
        found = self.json(name)
        if not isinstance(found, dict):
            raise self.corrupt(name, "is no JSON object")
        return found

    def parsed(self, name: str, model: type[Model]) -> Model:
        data = self.read(name)
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            raise self.corrupt(name, f"does not read: {problems_text(error)}") from error

    @cached_property
    def config(self) -> dict[str, JsonValue]:
        return self.fields(CONFIG)

    @cached_property
    def settings(self) -> dict[str, JsonValue]:
        """The content of `tokenizer_config.json`; empty if there is no file."""
        return self.fields(TOKENIZER_CONFIG) if self.has(TOKENIZER_CONFIG) else {}

    @cached_property
    def meaning(self) -> Meaning:
        """The meaning of the logits; empty if there is no `config.json`, as next to an adapter."""
        return self.parsed(CONFIG, Meaning) if self.has(CONFIG) else Meaning()

    def definition(self, backbone: Backbone) -> Mapping[str, Any]:
        """The content of `tokenizer.json`; the backbone's if there is no file."""
        if not self.has(TOKENIZER):
            return json.loads(backbone.tokenizer.definition)
        found = self.json(TOKENIZER, limit=MAX_TOKENIZER_BYTES)
        return found if isinstance(found, dict) else {}

    def max_length(self, backbone: Backbone) -> int | None:
        if not self.has(TOKENIZER_CONFIG):
            return None
        length = self.parsed(TOKENIZER_CONFIG, _TokenizerLimit).model_max_length
        return int(length) if length is not None and length <= backbone.config.max_tokens else None

    def weight_files(self, *, single: str = WEIGHTS, index: str = WEIGHTS_INDEX) -> Sequence[str]:
        """The single file of weights, else the shards of the index, if there are any."""
        if self.has(single):
            return [single]
        if self.has(index):
            return sorted(set(self.parsed(index, _Index).weight_map.values()))
        return []

    def stored_tensors(self) -> dict[str, Tensor]:
        tensors = dict[str, Tensor]()
        for name in self.weight_files() or [self._unless_pickled(WEIGHTS, PICKLE_ADVICE)]:
            data = self.read_once(name, limit=MAX_WEIGHT_BYTES)
            if (size := int.from_bytes(data[:8], "little")) > MAX_HEADER_BYTES:
                problem = f"has a header of {size} bytes, at most {MAX_HEADER_BYTES} are read"
                raise self.corrupt(name, problem)
            try:
                tensors |= tensors_from_bytes(data)
            except InvalidTensorsError as error:
                raise self.corrupt(name, f"is no safetensors: {error}") from error
        return tensors

    def float_tensors(self) -> dict[str, Tensor]:
        """The floating-point tensors; numbers of another format are refused."""
        # Old checkpoints also store the position ids, as integers.
        floats = {
            name: it
            for name, it in self.stored_tensors().items()
            if not name.endswith(".position_ids")
        }
        for name, tensor in floats.items():
            if tensor.dtype not in FLOATS:
                found = f"tensor {name!r} is {tensor.dtype}"
                raise self.refuse(found, "save the model in float32, float16 or bfloat16")
        return floats

    def adapter_tensors(self, stem: str, *, advice: str) -> dict[str, Tensor]:
        name = f"{stem}.safetensors"
        if not self.has(name):
            self._unless_pickled(name, advice)
        data = self.read_once(name, limit=MAX_WEIGHT_BYTES)
        try:
            read_header(data)
        except InvalidArtifactError as error:
            raise self.corrupt(name, f"is no sound safetensors: {error}") from error
        tensors = {key: it.to(torch.float32) for key, it in tensors_from_bytes(data).items()}
        check_finite(tensors)
        return tensors

    def _unless_pickled(self, name: str, advice: str) -> str:
        """The name of a missing file, for the reader to refuse, unless there is a pickle."""
        stem = "" if name == WEIGHTS else name.partition(".")[0]
        found = (it.name for it in self.folder.glob(f"*{stem}.*") if it.suffix in PICKLE_SUFFIXES)
        if pickle := min(found, default=None):
            raise NunatakError(
                "pickled_weights", folder=self.folder.name, file=pickle, advice=advice
            )
        return name

    def check_tensors(self, tensors: Mapping[str, Tensor], expected: Shapes) -> None:
        """Raise `tensor_mismatch` unless the tensors are exactly `expected`."""
        wrong = [
            f"{name} is {list(tensor.shape)}, expected {list(expected[name])}"
            for name, tensor in tensors.items()
            if name in expected and tuple(tensor.shape) != expected[name]
        ]
        self.check_names(
            missing=expected.keys() - tensors.keys(),
            unread=tensors.keys() - expected.keys(),
            misshapen=wrong,
        )

    def check_names(
        self,
        *,
        missing: Collection[str],
        unread: Collection[str] = (),
        misshapen: Collection[str] = (),
    ) -> None:
        """Raise `tensor_mismatch` if a tensor is missing, left over or misshapen."""
        parts = {
            "missing": sorted(missing),
            "that nothing reads": sorted(unread),
            "of another shape": sorted(misshapen),
        }
        if any(parts.values()):
            raise NunatakError("tensor_mismatch", folder=self.folder.name, found=mismatch_of(parts))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has the number {name}")


def check_new(target: Path) -> None:
    """Raise `folder_in_use` if there is something, and the error of a place for no folder."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise NunatakError("folder_in_use", folder=str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target.parent):
        pass


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Yield a folder to fill, and move it to `target` if the block succeeds."""
    check_new(target)
    prefix = f".{target.name}{UNFINISHED}"
    for left in target.parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), locked_folder(left, waits=False):  # a killed process holds no lock
            shutil.rmtree(left, ignore_errors=True)
    # Next to the target, so that the move at the end stays within one file system.
    made = target.parent / f"{prefix}{secrets.token_hex(8)}"
    made.mkdir()
    allowed = made.stat().st_mode & 0o777
    try:
        with ExitStack() as held:
            with suppress(OSError):  # a file system may have no locks
                held.enter_context(locked_folder(made, waits=False))
            yield made
            for path in made.rglob("*"):
                path.chmod(allowed if path.is_dir() else allowed & 0o666)
            check_new(target)  # another process may have made it meanwhile
            made.replace(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_json(folder: Path, name: str, document: object) -> None:
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")
