"""A server that holds only the lowest layers of its backbone."""

from collections.abc import Generator

import pytest

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task, random_parameters, spec_of
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, TopK
from nunatak_model import Backbone, keep_lowest_layers, pack_backbone, tensors_to_bytes
from nunatak_registry import Registry
from nunatak_versions import load_task

TEXT = "where is my parcel?"


@pytest.fixture(scope="module")
def whole() -> Backbone:
    return tiny_backbone(num_layers=4)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, whole: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        methods = {"top2": TopK(num_layers=2), "top1": TopK(num_layers=1)}
        methods |= {"lora": Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), "bare": HeadOnly()}
        for name, method in methods.items():
            publish_tiny_task(opened, whole, task=name, method=method)
        yield opened


async def test_it_answers_what_it_can_and_refuses_the_rest(
    whole: Backbone, registry: Registry
) -> None:
    async with running_client(pack_backbone(whole), registry) as client:
        expected = (await client.post("/v1/tasks/top2/predict", json={"inputs": TEXT})).json()
    held = pack_backbone(keep_lowest_layers(whole, 2))
    async with running_client(held, registry, make_settings()) as client:
        answer = await client.post("/v1/tasks/top2/predict", json={"inputs": TEXT})
        everything = {"inputs": TEXT, "tasks": ["top2", "top1", "lora", "bare"]}
        fan_out = (await client.post("/v1/predict", json=everything)).json()["results"]
        embedded = await client.post("/tei/backbone/embed", json={"inputs": TEXT})
        backbone = (await client.get("/info")).json()["backbone"]
        ledger = (await client.get("/v1/memory")).json()

    assert answer.status_code == 200
    assert answer.json()["outputs"] == expected["outputs"]
    failed = {it["reference"]: it["error"] for it in fan_out if "error" in it}
    assert failed.keys() == {"top1", "lora", "bare"}
    for error in failed.values():
        assert (error["status"], error["code"]) == (409, "layer_not_held")
    assert embedded.status_code == 409
    assert "backbone layer 3 is needed" in embedded.text
    assert (backbone["num_layers"], backbone["num_layers_held"]) == (4, 2)
    assert ledger["saved_share"] == pytest.approx(ledger["saved_share_formula"], abs=0.02)


def test_own_layers_equal_to_those_left_out_still_have_no_effect(
    whole: Backbone, registry: Registry
) -> None:
    manifest = registry.resolve("top2")
    spec = spec_of(whole, TopK(num_layers=2), num_labels=3)
    copied = {
        name: whole.parameters.get(name, tensor).clone()
        for name, tensor in random_parameters(spec, whole, seed=0).items()
    }

    with raises("no_effect"):
        load_task(manifest, tensors_to_bytes(copied), keep_lowest_layers(whole, 2))
