"""Task versions as folders whose vectors, by sentence-transformers, are the task's logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from doubles.backbones import FAMILIES, Family
from doubles.checkpoints import TEXTS, encodings, loaded_task, logits
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.tasks import MAX_LENGTH, random_parameters
from nunatak_contract.enums import Activation, HeadKind, HeadNorm, LinearMap, Pooling
from nunatak_contract.heads import TANH_BLOCK, DenseBlock
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_exchange.transformers_export import export_sentence_transformers
from nunatak_model import Backbone, Branch, BranchSpec, HeadSpec, build_branch

GELU_BLOCK = DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)
BRANCHES: tuple[tuple[Method, HeadSpec], ...] = (
    (TopK(num_layers=2), HeadSpec(num_labels=3, pooling=Pooling.MEAN)),
    (Full(), HeadSpec(num_labels=5, pooling=Pooling.FIRST, bias=False)),
    (
        Lora(rank=3, alpha=5.0, targets=tuple(LinearMap), first_layer=1),
        HeadSpec(num_labels=4, pooling=Pooling.MEAN, dense=True, block=GELU_BLOCK),
    ),
    (HeadOnly(), HeadSpec(num_labels=2, pooling=Pooling.FIRST, dense=True, block=TANH_BLOCK)),
)


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    family: Family = request.param
    return TwinFactory(tmp_path_factory.mktemp(family), family=family).backbone


def drawn(backbone: Backbone, method: Method, head: HeadSpec) -> Branch:
    spec = BranchSpec(method=method, head=head)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


@pytest.mark.each
@pytest.mark.parametrize(("method", "head"), BRANCHES)
def test_the_vector_of_a_text_is_the_logits_of_the_task(
    backbone: Backbone, tmp_path: Path, method: Method, head: HeadSpec
) -> None:
    branch = drawn(backbone, method, head)

    export_sentence_transformers(loaded_task(backbone, branch), tmp_path / "out", backbone)

    model: Any = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    vectors = model.encode(list(TEXTS), convert_to_tensor=True)
    expected = [logits(backbone, branch, it) for it in encodings(backbone)]
    torch.testing.assert_close(vectors, torch.stack(expected), atol=1e-4, rtol=0)
    assert model.max_seq_length == MAX_LENGTH
    assert len(model[0].auto_model.config.id2label) == head.num_labels


@pytest.mark.parametrize(
    ("method", "head", "part"),
    [
        (Bottleneck(size=4), HeadSpec(num_labels=2, pooling=Pooling.MEAN), "bottleneck"),
        (HeadOnly(), HeadSpec(num_labels=3, kind=HeadKind.TOKEN_CLASSIFICATION), "no modules"),
    ],
)
def test_what_its_modules_do_not_express_is_refused_with_the_alternative(
    tmp_path: Path, method: Method, head: HeadSpec, part: str
) -> None:
    backbone = TwinFactory(tmp_path / "base", family="bert").backbone

    with raises("unsupported_export", match=part) as caught:
        task = loaded_task(backbone, drawn(backbone, method, head))
        export_sentence_transformers(task, tmp_path / "out", backbone)

    assert "--format hub" in str(caught.value)
    assert not (tmp_path / "out").exists()
