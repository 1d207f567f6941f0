"""Writing peft folders: whole, readable, and only tasks that peft can hold."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
import torch

from doubles.adapter_folders import loaded_task, peft_folder
from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.tasks import LABELS
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.peft_folders import export_peft, import_peft
from nunatak_exchange.transformers_export import export_sentence_transformers, export_transformers
from nunatak_model import Backbone

FORMATS = {
    "transformers": export_transformers,
    "sentence-transformers": export_sentence_transformers,
}
POOLINGS = (Pooling.FIRST, Pooling.MEAN)
LORA = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)


@pytest.mark.parametrize(
    ("method", "pooling"),
    [
        *product((TopK(num_layers=1), HeadOnly(), Bottleneck(size=4), Full()), POOLINGS),
        (LORA, Pooling.MEAN),
    ],
    ids=lambda it: it if isinstance(it, Pooling) else it.kind,
)
def test_what_peft_cannot_hold_is_refused_with_a_format_that_holds_it(
    method: Method, pooling: Pooling, tmp_path: Path
) -> None:
    backbone, out = tiny_backbone(pooling=pooling), tmp_path / "out"
    task = loaded_task(backbone, method)

    with raises("unsupported_export", match="tone/1") as caught:
        export_peft(task, out, backbone)
    assert not out.exists()

    (advised,) = re.findall(r"--format ([\w-]+)", str(caught.value))
    if isinstance(method, Bottleneck):
        assert advised == "hub"
    else:
        FORMATS[advised](task, out, backbone)


def test_a_folder_with_something_in_it_is_left_alone(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")

    with raises("folder_in_use"):
        export_peft(
            loaded_task(backbone, LORA),
            tmp_path,
            backbone,
        )

    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_labels_stand_next_to_the_adapter_in_order(backbone: Backbone, tmp_path: Path) -> None:
    folder = peft_folder(tmp_path / "out", backbone)

    meaning = json.loads((folder / "config.json").read_text())

    assert tuple(meaning["id2label"].values()) == LABELS
    assert meaning["problem_type"] == "single_label_classification"


@pytest.mark.parametrize("kind", HeadKind)
def test_what_was_written_reads_back_bit_by_bit(kind: HeadKind, tmp_path: Path) -> None:
    backbone = tiny_backbone(family="roberta")
    task = loaded_task(
        backbone, Lora(rank=3, alpha=6.0, first_layer=2, targets=QUERY_AND_VALUE), kind=kind
    )
    export_peft(task, tmp_path / "out", backbone)

    imported = import_peft(Checkpoint(tmp_path / "out"), backbone)

    assert imported.spec == task.branch.spec
    assert imported.parameters.keys() == task.branch.parameters.keys()
    for name, tensor in imported.parameters.items():
        assert torch.equal(tensor, task.branch.parameters[name])
