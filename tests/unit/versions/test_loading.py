from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving_kernels import banks_of, with_gpu_kernels
from doubles.tasks import EVERY_METHOD, numbered, tiny_task
from nunatak_contract.enums import Activation, HeadKind, HeadNorm, Pooling, TensorDtype
from nunatak_contract.evidence import ProbeLogits
from nunatak_contract.heads import DenseBlock
from nunatak_contract.methods import HeadOnly, Method
from nunatak_model import (
    Backbone,
    HeadSpec,
    quantize_backbone,
    tensors_from_bytes,
    tensors_to_bytes,
)
from nunatak_versions import branch_spec, head_record, load_task, probe_tolerance

BLOCKS = [
    DenseBlock(activation=activation, bias=bias, norm=norm)
    for activation, bias, norm in product(Activation, (True, False), HeadNorm)
]


@pytest.mark.parametrize("method", EVERY_METHOD, ids=lambda method: method.kind)
def test_every_method_loads_and_passes_its_probe(backbone: Backbone, method: Method) -> None:
    draft, blobs = tiny_task(backbone, method=method)

    task = load_task(numbered(draft), blobs["parameters"], backbone)

    assert task.manifest.reference == "tone/1"
    assert task.branch.split_depth == draft.split_depth
    assert task.num_bytes == task.branch.num_bytes > 0


@pytest.mark.parametrize("method", EVERY_METHOD[:-1], ids=lambda method: method.kind)
def test_a_version_loads_into_slots_and_leaves_them_empty(
    backbone: Backbone, method: Method
) -> None:
    draft, blobs = tiny_task(backbone, method=method)
    served = with_gpu_kernels(backbone)

    task = load_task(numbered(draft), blobs["parameters"], served)

    stored = load_task(numbered(draft), blobs["parameters"], backbone).branch
    assert task.branch.head_parameters == stored.head_parameters
    assert task.branch.branch_parameters == stored.branch_parameters
    assert banks_of(served).num_bytes() >= task.num_bytes
    del task
    assert banks_of(served).num_bytes() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", HeadKind)
def test_every_kind_of_head_loads_and_passes_its_probe(kind: HeadKind, dtype: torch.dtype) -> None:
    draft, blobs = tiny_task(tiny_backbone(), kind=kind)

    task = load_task(numbered(draft), blobs["parameters"], tiny_backbone(dtype=dtype))

    assert task.branch.spec.head.kind is kind
    assert task.manifest.head.num_outputs == task.branch.spec.head.num_labels


def test_a_version_serves_in_the_format_of_the_backbone() -> None:
    backbone = tiny_backbone()
    half = tiny_backbone(dtype=torch.bfloat16)
    draft, blobs = tiny_task(backbone, method=HeadOnly())

    full_size = load_task(numbered(draft), blobs["parameters"], backbone)
    half_size = load_task(numbered(draft), blobs["parameters"], half)

    assert half.digest == backbone.digest
    assert half_size.num_bytes * 2 == full_size.num_bytes


@pytest.mark.parametrize("part", ["backbone", "tokenizer"])
def test_another_backbone_or_tokenizer_is_refused(backbone: Backbone, part: str) -> None:
    draft, blobs = tiny_task(backbone)
    other = "0" * 64
    changes: dict[str, object] = (
        {"tokenizer_digest": other}
        if part == "tokenizer"
        else {"backbone": draft.backbone.model_copy(update={"digest": other}).model_dump()}
    )

    with raises("backbone_mismatch", match=part):
        load_task(numbered(draft, **changes), blobs["parameters"], backbone)


@pytest.mark.parametrize(
    ("value", "dtype", "is_validated"),
    [
        (float("nan"), torch.float32, False),
        (float("inf"), torch.float32, False),
        (1e6, torch.float16, False),
        (float("nan"), torch.float32, True),
    ],
    ids=["nan", "infinite", "beyond-the-format", "proven-before"],
)
def test_parameters_that_are_not_finite_in_the_format_of_the_backbone_are_refused(
    value: float, dtype: torch.dtype, *, is_validated: bool
) -> None:
    draft, blobs = tiny_task(tiny_backbone())
    tensors = tensors_from_bytes(blobs["parameters"])
    next(iter(tensors.values())).view(-1)[0] = value
    served, stored = tiny_backbone(dtype=dtype), tensors_to_bytes(tensors)

    with raises("non_finite_parameter"):
        load_task(numbered(draft), stored, served, is_validated=is_validated)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": TensorDtype.FLOAT16}, "float32"),
        ({"split_depth": 1}, "splits at layer 3"),
        ({"max_length": 10_000}, "at most"),
    ],
    ids=["dtype", "split-depth", "tokens"],
)
def test_a_manifest_that_the_parameters_or_the_backbone_contradict_is_refused(
    backbone: Backbone, changes: dict[str, object], words: str
) -> None:
    draft, blobs = tiny_task(backbone)

    with raises("unservable_task", match=words):
        load_task(numbered(draft, **changes), blobs["parameters"], backbone)


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    first, *others = tensors
    return {f"x{first}": tensors[first], **{name: tensors[name] for name in others}}


def permuted(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: it.roll(1, dims=0) if "output" in name else it for name, it in tensors.items()}


def overflowing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(it, torch.finfo(it.dtype).max) for name, it in tensors.items()}


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        (renamed, "parameter_mismatch", "missing"),
        (permuted, "probe_failed", "differ"),
        (overflowing, "probe_failed", "differ by nan"),
    ],
)
def test_parameters_of_another_task_are_refused(
    backbone: Backbone,
    changed: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    code: str,
    words: str,
) -> None:
    draft, blobs = tiny_task(backbone)
    data = tensors_to_bytes(changed(tensors_from_bytes(blobs["parameters"])))

    with raises(code, match=words):
        load_task(numbered(draft), data, backbone)


@pytest.mark.parametrize(
    ("kind", "logits", "words"),
    [
        (HeadKind.SEQUENCE_CLASSIFICATION, (1.0, 2.0), "3 logits, 2 were recorded"),
        (HeadKind.QUESTION_ANSWERING, ((0.0, 1.0),), "18 x 2 logits, 1 x 2 were recorded"),
    ],
)
def test_a_probe_of_another_shape_fails(
    backbone: Backbone, kind: HeadKind, logits: ProbeLogits, words: str
) -> None:
    draft, blobs = tiny_task(backbone, kind=kind)
    probe = draft.probe.model_copy(update={"logits": (logits,) * 2})

    with raises("probe_failed", match=words):
        load_task(numbered(draft, probe=probe.model_dump()), blobs["parameters"], backbone)


def test_a_version_that_was_proven_is_not_probed_again_but_in_slots(backbone: Backbone) -> None:
    draft, blobs = tiny_task(backbone)
    other = draft.probe.model_copy(update={"logits": ((9.0, 9.0, 9.0),) * 2})
    manifest = numbered(draft, probe=other.model_dump())

    load_task(manifest, blobs["parameters"], backbone, is_validated=True)

    with raises("probe_failed"):
        load_task(manifest, blobs["parameters"], with_gpu_kernels(backbone), is_validated=True)


def test_float32_allows_what_was_recorded_and_other_formats_a_share_of_the_largest_logit() -> None:
    plain = tiny_backbone(num_layers=1)
    bfloat16, float16 = (
        tiny_backbone(num_layers=1, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)
    )

    assert probe_tolerance(1e-4, (5.0, -1.0), plain) == 1e-4
    assert probe_tolerance(1e-4, (4.0, -400.0), plain) == pytest.approx(4e-3)
    assert probe_tolerance(1e-4, (0.5, -1.0), bfloat16) == pytest.approx(0.1)
    assert probe_tolerance(1e-4, (5.0, -10.0), float16) == pytest.approx(0.2)
    assert probe_tolerance(1e-4, (5.0, -10.0), quantize_backbone(plain)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        *(
            (HeadSpec(num_labels=3, pooling=pooling, dense=True, block=block), ("a", "b", "c"))
            for pooling, block in product(Pooling, BLOCKS)
        ),
        (HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=2), ("O", "B-X")),
        (HeadSpec(kind=HeadKind.QUESTION_ANSWERING, num_labels=2), ()),
        (HeadSpec(kind=HeadKind.RANKING, num_labels=1, pooling=Pooling.FIRST), ()),
        (HeadSpec(num_labels=2, pooling=Pooling.LAST, bias=False, padding_id=0), ("no", "yes")),
    ],
    ids=lambda it: it.kind if isinstance(it, HeadSpec) else "",
)
def test_every_kind_of_head_comes_back_from_its_record(
    spec: HeadSpec, labels: tuple[str, ...]
) -> None:
    assert branch_spec(head_record(spec, labels), HeadOnly()).head == spec
