"""Adapter folders to tamper with: sound ones, and functions that break them."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from doubles.tasks import numbered, tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method
from nunatak_exchange.peft_folders import export_peft
from nunatak_model import Backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_versions import LoadedTask, load_task

ADAPTERHUB = Path(__file__).parents[1] / "interchange_fixtures" / "adapterhub"
_WRITTEN: Final[dict[str, dict[str, bytes]]] = {}
"""The files of a sound folder, by the digest of its backbone."""


def loaded_task(
    backbone: Backbone, method: Method, *, kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
) -> LoadedTask:
    """A tiny task of this method, loaded as in a server."""
    draft, blobs = tiny_task(backbone, method=method, kind=kind)
    return load_task(numbered(draft), blobs["parameters"], backbone)


def peft_folder(folder: Path, backbone: Backbone) -> Path:
    """A sound LoRA folder of rank 2 over query and value, with labels."""
    if backbone.digest not in _WRITTEN:
        task = loaded_task(backbone, Lora(rank=2, alpha=4.0, targets=QUERY_AND_VALUE))
        with tempfile.TemporaryDirectory() as place:
            export_peft(task, Path(place) / "it", backbone)
            files = (Path(place) / "it").iterdir()
            _WRITTEN[backbone.digest] = {it.name: it.read_bytes() for it in files}
    folder.mkdir(parents=True)
    for name, content in _WRITTEN[backbone.digest].items():
        (folder / name).write_bytes(content)
    return folder


def adapterhub_folder(folder: Path, case: str) -> Path:
    return Path(shutil.copytree(ADAPTERHUB / case, folder))


def edit_json(path: Path, changes: Mapping[str, object]) -> None:
    """Set fields of a JSON file; `config.x` is the field x of the object config."""
    document = json.loads(path.read_text())
    for name, value in changes.items():
        *parents, last = name.split(".")
        target = document
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_text(json.dumps(document))


def edit_tensors(path: Path, changes: Mapping[str, Tensor | None]) -> None:
    tensors: dict[str, Tensor | None] = {**tensors_from_bytes(path.read_bytes()), **changes}
    path.write_bytes(tensors_to_bytes({name: it for name, it in tensors.items() if it is not None}))
