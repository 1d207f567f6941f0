"""Backbones that a user adds: any checkpoint that transformers reads, as a folder for serving.

`add_backbone` writes a folder that `load_backbone` opens alone:

config.json, tokenizer.json, tokenizer_config.json    as the checkpoint has them, or as transformers
                                                      writes them
model.safetensors                                     the encoder, and the first tensors of heads
modules.json, 1_Pooling/config.json, ...              of sentence-transformers, if there are any
backbone.json                                         name, origin and digest

Tokenizer files that serving can read already are copied byte by byte, and weights keep their number
format, so that the digest stays. Before the folder appears, the vectors of a few texts are compared
with transformers' own.
"""

import json
import math
import os
import pickle
import re
import tempfile
import time
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from pydantic import BaseModel
from torch import Tensor

from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_exchange import reference
from nunatak_exchange.checkpoint import (
    CONFIG,
    MAX_TOKENIZER_BYTES,
    MAX_WEIGHT_BYTES,
    PICKLE_ADVICE,
    Checkpoint,
    check_new,
    new_folder,
    write_json,
)
from nunatak_exchange.checks import tokenizer_files
from nunatak_exchange.hub import Fetched, fetched, is_folder
from nunatak_model import (
    Backbone,
    BackboneConfig,
    CorruptBackboneError,
    load_backbone,
    tensors_to_bytes,
    tokenizer_folder,
)
from nunatak_model.architectures import architecture_of, config_from, encoder_shapes
from nunatak_model.checkpoint import RECORD, WEIGHTS, WEIGHTS_INDEX, added_backbones, bare_tensors
from nunatak_model.sentence_folder import FILES as SENTENCE_FILES
from nunatak_model.text.tokenizer import TextTokenizer, patterns_in
from nunatak_model.tokenizer_folder import TOKENIZER, TYPES, quiet

OLD_WEIGHTS, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
FILES: Final = (
    CONFIG,
    *tokenizer_folder.FILES,
    *tokenizer_folder.SLOW_FILES,
    *SENTENCE_FILES,
    "model*.safetensors",
    WEIGHTS_INDEX,
)
READ_ERRORS = (
    *(pickle.UnpicklingError, zipfile.BadZipFile),
    *(RuntimeError, ValueError, EOFError, OSError),
)
"""Errors of `torch.load` over a damaged file, or over one with more than tensors."""
OLD_FILES: Final = ("pytorch_model*.bin", OLD_INDEX)
MAX_FILES: Final = 20_000
"""Files in a zip archive of old weights, one for each tensor."""
STDERR: Final = 2
MAX_LETTERS: Final = 64
MAX_PATTERN_S: Final = 5.0
"""Time for a few hundred short texts, which take milliseconds."""
SMALL_NUMEL: Final = 2**20
"""Numbers that a model may lack whatever its size; the missing tensors are then named."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class AddedBackbone(BaseModel, frozen=True):
    """The record of an added backbone, `backbone.json`."""

    name: str
    source: str
    digest: str
    model_type: str
    num_layers: int
    hidden_width: int
    max_tokens: int
    gives_token_types: bool | None = None
    """Whether the tokenizer gives token types. None: an older release added the backbone."""
    difference: float
    """Largest difference from transformers' vectors when it was added, as a part of the largest."""


def add_backbone(place: str, *, name: str | None, revision: str | None = None) -> AddedBackbone:
    """Read a checkpoint by transformers, check it, and write it to the folder of added backbones.

    `place` is a folder, or a repository on the hub. The errors are `invalid_option` (a name that is
    not allowed), `folder_in_use`, `invalid_folder`, `hub_unavailable`, and `unsupported_import`: no
    architecture or setting here, or the vectors differ from transformers' own.
    """
    wanted = _checked_name(name or place.rstrip("/").rpartition("/")[2])
    target = added_backbones() / wanted
    check_new(target)
    with _checkpoint(place, revision) as there, new_folder(target) as made:
        return write_backbone(Checkpoint(there.folder), made, name=wanted, source=there.origin)


def list_backbones() -> list[AddedBackbone]:
    folder = added_backbones()
    names = sorted(it.parent.name for it in folder.glob(f"[!.]*/{RECORD}"))
    return [read_backbone(name) for name in names]


def read_backbone(name: str) -> AddedBackbone:
    checkpoint = Checkpoint(added_backbones() / _checked_name(name))
    if not checkpoint.has(RECORD):
        raise NunatakError(
            "backbone_not_found",
            source=name,
            reason="no backbone of that name was added; `nunatak backbone list` shows all",
        )
    return checkpoint.parsed(RECORD, AddedBackbone)


def verify_backbone(name: str) -> str | None:
    """Load an added backbone and compare its digest; return the problem, or None."""
    try:
        record = read_backbone(name)
        digest = load_backbone(added_backbones() / name).digest
    except NunatakError as error:
        if error.code == "backbone_not_found":
            raise
        return str(error)
    if digest == record.digest:
        return None
    return f"its files have the digest {digest[:12]}..., {RECORD} says {record.digest[:12]}..."


def write_backbone(checkpoint: Checkpoint, made: Path, *, name: str, source: str) -> AddedBackbone:
    raw = checkpoint.config
    with checkpoint.backbone_errors():
        # An architecture that is not available is refused before anything large is read.
        shape = config_from(raw)
    reference.check_num_labels(checkpoint, raw)
    with tokenizer_files(checkpoint) as folder, checkpoint.backbone_errors():
        tokenizer = tokenizer_folder.load_by_transformers(folder, raw)
    _write_tokenizer(checkpoint, made, tokenizer)
    for pattern in SENTENCE_FILES:
        for path in sorted(checkpoint.folder.glob(pattern)):
            _copy(checkpoint, made, str(path.relative_to(checkpoint.folder)))
    write_json(made, CONFIG, {key: it for key, it in raw.items() if key != "auto_map"})
    stored = _read_weights(checkpoint)
    _check_size(checkpoint, stored, shape)
    config = reference.config_of(checkpoint, raw)
    theirs = reference.load_model(checkpoint, reference.encoder_class(config), config, stored)
    with checkpoint.backbone_errors():
        tensors = _tensors(stored, theirs.model.state_dict(), shape)
        (made / WEIGHTS).write_bytes(tensors_to_bytes(tensors))
        backbone = load_backbone(made)
    source_names = architecture_of(backbone.config).source_names
    needed = {name for it in encoder_shapes(backbone.config) for name in source_names(it)}
    # transformers makes up the tensors that a checkpoint lacks.
    checkpoint.check_names(missing=needed & theirs.missing)
    _check_patterns(checkpoint, backbone.tokenizer)
    _check_tokens(checkpoint, tokenizer, backbone)
    expected = reference.answers_of(theirs.model, backbone)
    branch = reference.vector_branch(backbone)
    difference = reference.check_answers(checkpoint, branch, backbone, expected)
    record = AddedBackbone(
        name=name,
        source=source,
        digest=backbone.digest,
        model_type=backbone.config.model_type,
        num_layers=backbone.config.num_layers,
        hidden_width=backbone.config.hidden_width,
        max_tokens=backbone.config.max_tokens,
        gives_token_types=TYPES in tokenizer.model_input_names,
        difference=difference,
    )
    write_json(made, RECORD, record.model_dump(mode="json"))
    return record


def _checked_name(name: str) -> str:
    if name == DEFAULT_BACKBONE:
        raise invalid_option(
            f"{name!r} is built in, and no added backbone (`backbone add` takes another name by "
            "--name)"
        )
    if NAME.fullmatch(name):
        return name
    raise invalid_option(
        "the name of an added backbone has 1 to 96 letters, digits, dots, hyphens and "
        f"underscores, and begins with a letter or a digit; got {name[:100]!r} (`backbone add` "
        "takes another by --name)"
    )


@contextmanager
def _checkpoint(place: str, revision: str | None) -> Generator[Fetched]:
    """Yield the files of a place. Old weights are fetched only if there are no others."""
    with fetched(place, revision=revision, files=FILES) as there:
        if is_folder(place) or any(there.folder.glob("*.safetensors")):
            yield there
            return
    with fetched(place, revision=revision, files=(*FILES, *OLD_FILES)) as there:
        yield there


def _copy(checkpoint: Checkpoint, made: Path, name: str) -> None:
    data = checkpoint.read(name, limit=MAX_TOKENIZER_BYTES)
    (made / name).parent.mkdir(exist_ok=True)
    (made / name).write_bytes(data)


def _check_patterns(checkpoint: Checkpoint, tokenizer: TextTokenizer) -> None:
    patterns = "".join(patterns_in(json.loads(tokenizer.definition)))
    letters = sorted({it for it in patterns if it.isalnum()} | {*"a0! "})[:MAX_LETTERS]
    for times in (50, 500):
        # The library tries nothing where a letter that the pattern needs is not in the text.
        ends, runs = ("", "!", f"!{''.join(letters)}"), (*letters, "".join(letters))
        texts = [f"{run * times}{end}" for run in runs for end in ends]
        begin = time.monotonic()
        try:
            with _without_lines_of_panics():
                tokenizer.encode(texts, max_length=10**9)
            is_slow = time.monotonic() - begin > MAX_PATTERN_S
        except NunatakError:
            is_slow = True
        if is_slow:
            raise checkpoint.refuse(
                f"a pattern in its {TOKENIZER} tries too many ways to match a short text",
                "take a checkpoint whose tokenizer has a pattern without nested repetitions",
            )


@contextmanager
def _without_lines_of_panics() -> Generator[None]:
    """Keep off the terminal what Rust code writes there when it gives up."""
    with Path(os.devnull).open("wb") as nowhere:
        kept = os.dup(STDERR)
        os.dup2(nowhere.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
            os.close(kept)


def _check_size(
    checkpoint: Checkpoint, stored: Mapping[str, Tensor], config: BackboneConfig
) -> None:
    """Refuse a `config.json` of an encoder far larger than the weights, which would be made up."""
    described = sum(math.prod(shape) for shape in encoder_shapes(config).values())
    held = sum(tensor.numel() for tensor in stored.values())
    if described > 2 * held + SMALL_NUMEL:
        raise checkpoint.refuse(
            f"its config.json describes an encoder of {described} numbers, and its weights hold "
            f"{held}",
            "take the config.json that was saved with the weights",
        )


def _write_tokenizer(checkpoint: Checkpoint, made: Path, tokenizer: Any) -> None:  # noqa: ANN401
    has_file = checkpoint.has(TOKENIZER)
    stored = checkpoint.read(TOKENIZER, limit=MAX_TOKENIZER_BYTES) if has_file else None
    with quiet():
        tokenizer.save_pretrained(made)
    (made / TOKENIZER).write_bytes(tokenizer_folder.definition_of(tokenizer, stored))


def _read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    old = checkpoint.weight_files(single=OLD_WEIGHTS, index=OLD_INDEX)
    if checkpoint.weight_files() or not old:
        return checkpoint.stored_tensors()
    stored = dict[str, Tensor]()
    for name in old:
        stored |= _read_old(checkpoint, name)
    return stored


def _read_old(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """Read what `torch.save` wrote by torch's restricted reader, which runs no code of it."""
    data = checkpoint.read_once(name, limit=MAX_WEIGHT_BYTES)
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(data)
        copy.flush()
        path = Path(copy.name)
        del data
        try:
            if (size := _unpacked_bytes(path)) > MAX_WEIGHT_BYTES:
                raise _refused_old(checkpoint, name, f"it unpacks to {size} bytes")
            found = cast("object", torch.load(path, map_location="cpu", weights_only=True))
        except READ_ERRORS as error:
            raise _refused_old(checkpoint, name, str(error).partition("\n")[0][:200]) from error
    tensors = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    if not tensors or not all(isinstance(it, Tensor) for it in tensors.values()):
        raise _refused_old(checkpoint, name, "it is no dictionary of tensors")
    return {str(key): cast("Tensor", it).contiguous() for key, it in tensors.items()}


def _unpacked_bytes(path: Path) -> int:
    """The size of a zip archive's content; 0 for the older format, which packs nothing."""
    if not zipfile.is_zipfile(path):
        return 0
    with zipfile.ZipFile(path) as archive:
        files = archive.infolist()
        return MAX_WEIGHT_BYTES + 1 if len(files) > MAX_FILES else sum(it.file_size for it in files)


def _refused_old(checkpoint: Checkpoint, name: str, reason: str) -> NunatakError:
    found = f"{name} is not read, because only plain tensors are ({reason})"
    return checkpoint.refuse(found, PICKLE_ADVICE)


def _tensors(
    stored: Mapping[str, Tensor], read: Mapping[str, Tensor], config: BackboneConfig
) -> dict[str, Tensor]:
    """The stored tensors of the encoder; with names that only transformers knows, its own."""
    try:
        return bare_tensors(stored, config)
    except CorruptBackboneError:
        return bare_tensors(read, config)


def _check_tokens(checkpoint: Checkpoint, tokenizer: Any, backbone: Backbone) -> None:  # noqa: ANN401
    texts = (*reference.PROBE_INPUTS, reference.LONG_TEXT, "Ünïcödé, CJK 東京, and \U0001f600!")
    ours = backbone.tokenizer.encode(texts, max_length=10**9)
    for text, found in zip(texts, ours, strict=True):
        pair = (text,) if isinstance(text, str) else text
        with quiet():
            read = tokenizer(*pair)
        types = read.get("token_type_ids") or [0] * found.num_tokens
        if list(found.token_ids) != read["input_ids"] or list(found.type_ids) != types:
            raise checkpoint.refuse(
                f"transformers' {type(tokenizer).__name__} and {TOKENIZER} read "
                f"{str(text)[:40]!r} differently",
                "load the tokenizer once with AutoTokenizer, save it with save_pretrained, "
                "and add the result",
            )
