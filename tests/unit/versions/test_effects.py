"""Parameters that change nothing are refused, for every method; any change is enough."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from doubles.refusals import raises
from doubles.tasks import (
    CREATED_AT,
    EVERY_METHOD,
    LABELS,
    PROBE_INPUTS,
    numbered,
    random_parameters,
    spec_of,
    tiny_task,
)
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Ia3, Lora, Method, TopK
from nunatak_model import Backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_versions import Provenance, VersionDraft, draft_task, head_record, load_task

LORA = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
METHODS = [it for it in EVERY_METHOD if it.kind != "head"]


def without_effect(name: str, tensor: Tensor, backbone: Backbone) -> Tensor:
    if name in backbone.parameters:
        return backbone.parameters[name].clone()
    if ".ia3." in name:
        return torch.ones_like(tensor)
    is_added = name.endswith((".up", ".up.weight", ".up.bias"))
    return torch.zeros_like(tensor) if is_added else tensor


def idle_parameters(method: Method, backbone: Backbone) -> dict[str, Tensor]:
    spec = spec_of(backbone, method, num_labels=len(LABELS))
    parameters = random_parameters(spec, backbone, seed=0)
    return {name: without_effect(name, each, backbone) for name, each in parameters.items()}


def draft(method: Method, parameters: dict[str, Tensor], backbone: Backbone) -> VersionDraft:
    return draft_task(
        "tone",
        method=method,
        head=head_record(spec_of(backbone, method, num_labels=len(LABELS)).head, LABELS),
        parameters=parameters,
        backbone=backbone,
        max_length=32,
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=CREATED_AT),
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_parameters_without_effect_are_neither_drafted_nor_loaded(
    backbone: Backbone, method: Method
) -> None:
    manifest, _ = tiny_task(backbone, method=method)
    idle = idle_parameters(method, backbone)

    with raises("no_effect", match=f"{method.kind} parameters change no layer"):
        draft(method, idle, backbone)
    with raises("no_effect") as caught:
        load_task(numbered(manifest), tensors_to_bytes(idle), backbone)

    assert caught.value.fields["reference"] == "tone/1"


def test_lora_without_a_lower_half_has_no_effect(backbone: Backbone) -> None:
    _, blobs = tiny_task(backbone, method=LORA)
    emptied = {
        name: torch.zeros_like(each) if name.endswith(".down") else each
        for name, each in tensors_from_bytes(blobs["parameters"]).items()
    }

    with raises("no_effect"):
        draft(LORA, emptied, backbone)


def nudge(parameters: dict[str, Tensor], matches: Callable[[str], bool]) -> dict[str, Tensor]:
    name = next(name for name in reversed(list(parameters)) if matches(name))
    return {**parameters, name: parameters[name] + 0.25}


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        (TopK(num_layers=2), "output_norm.bias"),
        (Bottleneck(size=4, first_layer=2), "output_norm.weight"),
        (Bottleneck(size=4, first_layer=2), "up.bias"),
        (LORA, ".up"),
        (Ia3(), "key.output"),
        (Ia3(), "feedforward_out.input"),
        (Full(), "layers.0.output_norm.bias"),
    ],
)
def test_one_changed_tensor_is_an_effect(backbone: Backbone, method: Method, ending: str) -> None:
    changed = nudge(idle_parameters(method, backbone), lambda name: name.endswith(ending))

    assert draft(method, changed, backbone).manifest.task == "tone"
