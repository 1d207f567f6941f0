from typing import get_args

import pytest
import torch
from torch import Tensor

from doubles.backbones import FAMILIES, Family, tiny_backbone
from doubles.refusals import raises
from doubles.tasks import EVERY_METHOD, random_branch
from nunatak_contract.enums import Activation, AdapterInput, HeadKind, HeadNorm, LinearMap, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_model import (
    BranchSpec,
    HeadSpec,
    InvalidTensorsError,
    Row,
    build_branch,
    embedding_branch,
    forward,
    initial_parameters,
    maths_of,
    parameter_shapes,
    run_trunk,
    tensors_from_bytes,
    tensors_to_bytes,
)
from nunatak_model.branch import padded_head, padded_parameters
from nunatak_model.methods import MATHS
from nunatak_model.sentence_folder import POOLINGS

KINDS = [method.kind.value for method in EVERY_METHOD]
BACKBONE = tiny_backbone()
GELU_BLOCK = DenseBlock(activation=Activation.GELU, bias=False, norm=HeadNorm.GAIN)
TEXTS = ["where is my parcel?", "a", "no, not that one; the other one!"]
UNPADDED: list[Method] = [TopK(num_layers=2), HeadOnly(), Full()]


def test_every_method_has_maths_of_its_own_and_is_tested_here() -> None:
    members, _ = get_args(Method)
    assert set(get_args(members)) == set(MATHS) == {type(method) for method in EVERY_METHOD}


def with_three_labels(method: Method) -> BranchSpec:
    head = HeadSpec(num_labels=3, pooling=Pooling.FIRST, dense=True)
    return BranchSpec(method=method, head=head)


def fresh(method: Method, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return initial_parameters(with_three_labels(method), BACKBONE, generator=generator)


@pytest.mark.parametrize("method", EVERY_METHOD, ids=KINDS)
def test_initial_parameters_are_the_declared_ones_of_their_seed_and_no_view(method: Method) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in fresh(method).items()}
    frozen = {tensor.data_ptr() for tensor in BACKBONE.parameters.values()}

    assert shapes == parameter_shapes(with_three_labels(method), BACKBONE.config)
    assert not frozen & {tensor.data_ptr() for tensor in fresh(method).values()}
    assert tensors_to_bytes(fresh(method)) == tensors_to_bytes(fresh(method))
    assert tensors_to_bytes(fresh(method)) != tensors_to_bytes(fresh(method, seed=1))


@pytest.mark.parametrize("method", EVERY_METHOD, ids=KINDS)
def test_a_branch_references_its_tensors_and_counts_them(method: Method) -> None:
    parameters = fresh(method)

    branch = build_branch(with_three_labels(method), BACKBONE.config, parameters)

    assert all(branch.parameters[name] is tensor for name, tensor in parameters.items())
    assert branch.num_bytes == 4 * (branch.branch_parameters + branch.head_parameters)
    assert branch.head_parameters == 32 * 32 + 32 + 3 * 32 + 3


@pytest.mark.parametrize("method", EVERY_METHOD, ids=KINDS)
def test_a_missing_an_unused_and_a_misshapen_tensor_are_named(method: Method) -> None:
    parameters = fresh(method)
    del parameters["head.dense.bias"]
    parameters["layers.99.stray"] = torch.zeros(1)
    parameters["head.output.bias"] = torch.zeros(4)

    with raises("parameter_mismatch") as refused:
        build_branch(with_three_labels(method), BACKBONE.config, parameters)

    found = str(refused.value)
    assert "1 missing (head.dense.bias); 1 unused (layers.99.stray)" in found
    assert "1 of another shape or dtype (head.output.bias is " in found


@pytest.mark.parametrize(
    "dtypes", [{"head.output.bias": torch.double}, dict.fromkeys(fresh(HeadOnly()), torch.long)]
)
def test_tensors_of_two_dtypes_or_of_whole_numbers_are_refused(
    dtypes: dict[str, torch.dtype],
) -> None:
    parameters = {name: it.to(dtypes.get(name)) for name, it in fresh(HeadOnly()).items()}

    with raises("parameter_mismatch"):
        build_branch(with_three_labels(HeadOnly()), BACKBONE.config, parameters)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_by_name(value: float) -> None:
    parameters = fresh(TopK(num_layers=1))
    parameters["head.output.weight"].fill_(3e38)
    build_branch(with_three_labels(TopK(num_layers=1)), BACKBONE.config, parameters)
    parameters["layers.3.feedforward_in.weight"][5, 7] = value

    with raises("non_finite_parameter", match=r"layers\.3\.feedforward_in\.weight"):
        build_branch(with_three_labels(TopK(num_layers=1)), BACKBONE.config, parameters)


@pytest.mark.parametrize(
    "method",
    [
        TopK(num_layers=5),
        Lora(first_layer=4, rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
        Lora(rank=1025, alpha=16.0, targets=QUERY_AND_VALUE),
        Lora(rank=8, alpha=16.0, targets=(LinearMap.QUERY, LinearMap.QUERY)),
        Ia3(first_layer=4),
        Ia3(scaled_outputs=(), scaled_inputs=()),
        Ia3(scaled_outputs=(LinearMap.KEY, LinearMap.KEY)),
        Ia3(scaled_outputs=(LinearMap.FEEDFORWARD_OUT,)),
        Ia3(scaled_inputs=(LinearMap.QUERY,)),
        Bottleneck(size=65),
        Bottleneck(first_layer=4, size=64),
        Bottleneck(reads=AdapterInput.NORMED_SUM, size=64),
    ],
    ids=repr,
)
def test_settings_that_do_not_fit_the_backbone_are_refused(method: Method) -> None:
    with raises("invalid_method", match="got"):
        parameter_shapes(with_three_labels(method), BACKBONE.config)


@pytest.mark.parametrize(
    "head",
    [
        HeadSpec(num_labels=2),
        HeadSpec(num_labels=0, pooling=Pooling.MEAN),
        HeadSpec(kind=HeadKind.RANKING, num_labels=2, pooling=Pooling.MEAN),
        HeadSpec(kind=HeadKind.QUESTION_ANSWERING, num_labels=3),
        HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=3, pooling=Pooling.MEAN),
        HeadSpec(num_labels=2, pooling=Pooling.FIRST, block=GELU_BLOCK),
    ],
    ids=repr,
)
def test_a_head_that_contradicts_its_kind_is_refused(head: HeadSpec) -> None:
    with raises("invalid_head"):
        parameter_shapes(BranchSpec(method=HeadOnly(), head=head), BACKBONE.config)


@pytest.mark.parametrize("method", EVERY_METHOD, ids=KINDS)
def test_only_tasks_that_own_the_last_layer_own_the_norm_over_the_output(method: Method) -> None:
    shapes = parameter_shapes(with_three_labels(method), tiny_backbone(family="modernbert").config)

    assert ("layers.3.final_norm.weight" in shapes) == isinstance(method, TopK | Full)
    assert "layers.0.attention_norm.weight" not in shapes


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\x80\x04pickle", b"\xff" * 16])
def test_bytes_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidTensorsError):
        tensors_from_bytes(data)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", POOLINGS.values())
def test_an_embedding_next_to_tasks_is_the_pooled_state_above_the_last_layer(
    family: Family, pooling: Pooling
) -> None:
    backbone = tiny_backbone(family=family, pooling=pooling)
    encodings = backbone.tokenizer.encode(TEXTS, max_length=48)
    branch, task = embedding_branch(backbone), random_branch(backbone, TopK(num_layers=2))
    rows = [Row(encoding=it, branch=each) for it in encodings for each in (task, branch)]

    vectors = forward(backbone, rows)[1::2]

    assert branch.num_bytes == 0
    states = run_trunk(backbone, encodings, depth=backbone.config.num_layers).hidden
    for encoding, vector in zip(encodings, vectors, strict=True):
        state = states[encoding]
        ways = {Pooling.MEAN: state.mean(0), Pooling.FIRST: state[0], Pooling.LAST: state[-1]}
        assert torch.allclose(vector, ways[pooling], atol=1e-5)


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


def test_the_scale_of_an_update_is_applied_before_it_is_rounded() -> None:
    method, name = Lora(rank=3, alpha=1.0, targets=QUERY_AND_VALUE), "layers.0.lora.query.up"
    up = torch.randn(4, 3)

    padded = padded_parameters(method, {name: up}, {name: (4, 8)}, dtype=torch.bfloat16)[name]

    assert torch.equal(padded[:, :3], (up / 3).to(torch.bfloat16))
    assert not padded[:, 3:].any()
