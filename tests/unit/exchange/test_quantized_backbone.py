"""Task versions of a quantized backbone are trained and served only on that backbone."""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.tasks import CREATED_AT, EVERY_METHOD, numbered, random_parameters, spec_of, tiny_task
from nunatak_contract.methods import Full, Method, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.importing import import_folder
from nunatak_exchange.transformers_export import check_exportable
from nunatak_model import (
    Backbone,
    BranchSpec,
    UnsupportedBackboneError,
    build_branch,
    initial_parameters,
    maths_of,
    pack_backbone,
    quantize_backbone,
    stored_parameters,
    tensors_from_bytes,
)
from nunatak_versions import Provenance, VersionDraft, draft_task, head_record, load_task


@pytest.fixture(name="plain", scope="module")
def make_plain() -> Backbone:
    return tiny_backbone()


@pytest.fixture(name="quantized", scope="module")
def make_quantized(plain: Backbone) -> Backbone:
    return quantize_backbone(plain)


@pytest.mark.parametrize("method", EVERY_METHOD[:-1], ids=lambda method: method.kind)
def test_version_made_on_it_is_served_on_it(method: Method, quantized: Backbone) -> None:
    draft, blobs = tiny_task(quantized, method=method)

    served = load_task(numbered(draft), blobs["parameters"], pack_backbone(quantized))

    assert served.manifest.backbone.name.endswith("+int8")


def quantized_draft(method: Method, backbone: Backbone) -> VersionDraft:
    spec = spec_of(backbone, method, num_labels=2)
    parameters = random_parameters(spec, backbone, seed=1)
    return draft_of(spec, stored_parameters(spec, parameters, backbone), backbone)


def draft_of(
    spec: BranchSpec, parameters: Mapping[str, Tensor], backbone: Backbone
) -> VersionDraft:
    return draft_task(
        "tone",
        method=spec.method,
        head=head_record(spec.head, ("calm", "urgent")),
        parameters=parameters,
        backbone=backbone,
        max_length=32,
        probe_inputs=["where is my parcel?"],
        provenance=Provenance(created_at=CREATED_AT),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", [TopK(num_layers=2), Full()], ids=lambda method: method.kind)
def test_own_layers_are_stored_and_served_as_integers(
    method: Method, dtype: torch.dtype, quantized: Backbone
) -> None:
    draft = quantized_draft(method, quantized)

    plain = quantize_backbone(tiny_backbone(dtype=dtype))
    for backbone in (plain, pack_backbone(plain)):
        served = load_task(numbered(draft.manifest), draft.blobs["parameters"], backbone)

        weights = [
            it
            for name, it in served.branch.parameters.items()
            if name.startswith("layers.") and name.endswith(".weight") and it.ndim > 1
        ]
        assert weights
        assert not any(it.is_floating_point() for it in weights)
    parameters = tensors_from_bytes(draft.blobs["parameters"])
    shapes = maths_of(method).parameter_shapes(quantized.config)
    scales = {it for it in parameters if it.endswith("_scale")}
    assert parameters.keys() - scales >= shapes.keys()
    of_layers = sum(it.nbytes for name, it in parameters.items() if name.startswith("layers."))
    in_floats = sum(4 * prod(it) for name, it in shapes.items() if name.startswith("layers."))
    assert of_layers < 0.36 * in_floats
    counts = draft.manifest.parameter_counts
    assert counts.branch == sum(map(prod, shapes.values()))


def test_methods_without_own_layers_stay_in_floating_point(quantized: Backbone) -> None:
    for method in EVERY_METHOD[1:-1]:
        spec = spec_of(quantized, method, num_labels=2)
        parameters = random_parameters(spec, quantized, seed=1)

        assert stored_parameters(spec, parameters, quantized) == parameters


def test_own_layers_that_equal_the_backbones_integers_have_no_effect(quantized: Backbone) -> None:
    spec = spec_of(quantized, TopK(num_layers=2), num_labels=2)
    fresh = initial_parameters(spec, quantized, generator=torch.Generator().manual_seed(0))

    with raises("no_effect"):
        draft_of(spec, stored_parameters(spec, fresh, quantized), quantized)


def test_integers_without_their_scales_or_of_other_methods_are_refused(quantized: Backbone) -> None:
    spec = spec_of(quantized, TopK(num_layers=1), num_labels=2)
    stored = dict(stored_parameters(spec, random_parameters(spec, quantized, seed=1), quantized))
    lora = spec_of(quantized, EVERY_METHOD[3], num_labels=2)
    factors = random_parameters(lora, quantized, seed=1)
    wrong = {
        "missing": (spec, {it: stored[it] for it in stored if "qkv.weight_scale" not in it}),
        "unused": (spec, {**stored, "layers.3.qkv.bias_scale": torch.ones(1)}),
        "layers.3.qkv.weight_scale is": (
            spec,
            {**stored, "layers.3.qkv.weight_scale": torch.ones(1)},
        ),
        "is torch.int8": (lora, {name: it.to(torch.int8) for name, it in factors.items()}),
    }
    for problem, (form, parameters) in wrong.items():
        with raises("parameter_mismatch", match=problem):
            build_branch(form, quantized.config, parameters)


def test_integers_are_refused_on_a_backbone_that_has_none(plain: Backbone) -> None:
    quantized = quantize_backbone(plain)
    draft = quantized_draft(TopK(num_layers=1), quantized)
    record = draft.manifest.backbone.model_copy(update={"digest": plain.digest, "name": plain.name})
    claimed = draft.manifest.model_copy(update={"backbone": record})

    with raises("unservable_task", match=r"is torch\.int8"):
        load_task(numbered(claimed), draft.blobs["parameters"], plain)


def test_other_programs_folders_are_neither_read_nor_written(
    quantized: Backbone, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedBackboneError, match="computes in integers"):
        import_folder(Checkpoint(tmp_path), quantized)
    with pytest.raises(UnsupportedBackboneError, match="computes in integers"):
        check_exportable(quantized)
