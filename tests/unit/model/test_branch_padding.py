import pytest
import torch

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import HeadSpec, maths_of
from nunatak_model.branch import padded_head, padded_parameters

UNPADDED: list[Method] = [TopK(num_layers=2), HeadOnly(), Full()]


def test_updates_of_near_ranks_and_all_scales_share_a_form() -> None:
    forms = {
        maths_of(Lora(rank=rank, alpha=2.0 * rank + 1, targets=QUERY_AND_VALUE)).padded(8)
        for rank in range(1, 9)
    }

    assert len(forms) == 1
    (form,) = forms
    assert isinstance(form, Lora)
    assert (form.rank, form.scale) == (8, 1.0)
    assert maths_of(Lora(rank=9, alpha=16.0, targets=QUERY_AND_VALUE)).padded(8) not in forms


def test_methods_with_other_differences_have_different_forms() -> None:
    methods: list[Method] = [
        Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
        Lora(rank=8, first_layer=1, alpha=16.0, targets=QUERY_AND_VALUE),
        Bottleneck(size=8),
        Bottleneck(size=8, first_layer=1),
        Bottleneck(size=9),
    ]

    assert len({maths_of(method).padded(8) for method in methods}) == len(methods)


@pytest.mark.parametrize("method", UNPADDED, ids=str)
def test_methods_of_the_backbones_own_shapes_are_their_form(method: Method) -> None:
    assert maths_of(method).padded(8) == method


def test_heads_of_one_pooling_share_a_form_with_any_kind_and_labels() -> None:
    pooled = [
        HeadSpec(kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=5, pooling=Pooling.FIRST),
        HeadSpec(kind=HeadKind.RANKING, num_labels=1, pooling=Pooling.FIRST),
    ]
    of_tokens = [
        HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=7),
        HeadSpec(kind=HeadKind.QUESTION_ANSWERING, num_labels=2),
    ]
    forms = [{padded_head(head, 8) for head in heads} for heads in (pooled, of_tokens)]

    assert [len(one) for one in forms] == [1, 1]
    assert forms[0].isdisjoint(forms[1])
    for form in (*forms[0], *forms[1]):
        form.check()
        assert form.num_labels == 8


def test_padding_is_zeros_around_the_parameters() -> None:
    weight = torch.randn(3, 4)

    (padded,) = padded_parameters(
        HeadOnly(),
        {"head.output.weight": weight},
        {"head.output.weight": (8, 4)},
        dtype=weight.dtype,
    ).values()

    assert torch.equal(padded[:3], weight)
    assert not padded[3:].any()


def test_the_scale_of_an_update_is_applied_before_it_is_rounded() -> None:
    method, name = Lora(rank=3, alpha=1.0, targets=QUERY_AND_VALUE), "layers.0.lora.query.up"
    up = torch.randn(4, 3)

    padded = padded_parameters(method, {name: up}, {name: (4, 8)}, dtype=torch.bfloat16)[name]

    assert torch.equal(padded[:, :3], (up / 3).to(torch.bfloat16))
    assert not padded[:, 3:].any()
