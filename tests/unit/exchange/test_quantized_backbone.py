"""Task versions of a quantized backbone are trained and served only on that backbone."""

from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.tasks import tiny_task
from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_exchange import check_exportable, import_folder
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_model import Backbone, UnsupportedBackboneError, pack_backbone, quantize_backbone
from nunatak_versions import load_task

METHODS = [
    TopK(num_layers=2),
    HeadOnly(),
    Bottleneck(size=4),
    Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    Ia3(),
]


def numbered(draft: TaskDraft) -> TaskManifest:
    return TaskManifest.model_validate({**draft.model_dump(), "version": 1})


@pytest.fixture(name="plain", scope="module")
def make_plain() -> Backbone:
    return tiny_backbone()


@pytest.fixture(name="quantized", scope="module")
def make_quantized(plain: Backbone) -> Backbone:
    return quantize_backbone(plain)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_version_made_on_it_is_served_on_it(method: Method, quantized: Backbone) -> None:
    draft, blobs = tiny_task(quantized, method=method)

    served = load_task(numbered(draft), blobs["parameters"], pack_backbone(quantized))

    assert served.manifest.backbone.name.endswith("+int8")


def test_versions_of_the_original_and_of_the_quantized_are_kept_apart(
    plain: Backbone, quantized: Backbone
) -> None:
    for made_on, served_on in ((plain, quantized), (quantized, plain)):
        draft, blobs = tiny_task(made_on)

        with raises("backbone_mismatch", match=r"\+int8"):
            load_task(numbered(draft), blobs["parameters"], served_on)


def test_other_programs_folders_are_neither_read_nor_written(
    quantized: Backbone, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedBackboneError, match="computes in integers"):
        import_folder(Checkpoint(tmp_path), quantized)
    with pytest.raises(UnsupportedBackboneError, match="computes in integers"):
        check_exportable(quantized)
