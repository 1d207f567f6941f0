"""Laws of the savings report's tasks, clients and agreement."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from benchmarks.harness.makers import TaskPlan, draft, export_adapter, plans, publish_missing
from benchmarks.savings.clients import PlainClient
from benchmarks.savings.race import DisagreementError, check_agreement
from benchmarks.savings.systems import System
from doubles.backbones import tiny_backbone
from nunatak_client import ConnectionFailedError, InvalidResponseError
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, TopK
from nunatak_registry import Registry
from nunatak_versions import load_task

METHODS = (Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), TopK(num_layers=1))
ADDRESSES = {"a": "http://one", "b": "http://two", "c": "http://one"}


def asked(handler: httpx.MockTransport, *tasks: str) -> list[list[float]]:
    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient(transport=handler) as client:
            return await PlainClient(client, ADDRESSES).probabilities(tasks, "text")

    return asyncio.run(ask())


def test_missing_tasks_alone_are_published_and_every_one_can_be_served(tmp_path: Path) -> None:
    backbone = tiny_backbone(num_layers=2)

    assert publish_missing(tmp_path, plans(3, METHODS), backbone) == 3
    assert publish_missing(tmp_path, plans(5, METHODS), backbone) == 2

    with Registry.open(tmp_path) as registry:
        found = [summary.manifest for summary in registry.tasks()]
        assert [manifest.version for manifest in found] == [1] * 5
        assert not registry.verify()
        for manifest in found:
            load_task(manifest, registry.read_blob(manifest), backbone)


def test_same_plan_makes_the_same_task_and_another_seed_another() -> None:
    backbone = tiny_backbone(num_layers=2)
    plan = TaskPlan(name="t", method=METHODS[0], seed=1)

    assert draft(plan, backbone) == draft(plan, backbone)
    other = TaskPlan(name="t", method=METHODS[0], seed=2)
    assert draft(plan, backbone).blobs != draft(other, backbone).blobs


def test_adapters_keep_the_backbones_pooler_so_that_peft_can_mix_them(tmp_path: Path) -> None:
    (plan,) = plans(1, (Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),))

    folder = export_adapter(plan, tiny_backbone(num_layers=2), tmp_path)

    saved = json.loads((folder / "adapter_config.json").read_text())["modules_to_save"]
    assert "classifier" in saved
    assert "pooler" not in saved


def test_tasks_of_different_processes_are_asked_apart_and_answered_in_order() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        tasks: list[str] = json.loads(request.content)["tasks"]
        return httpx.Response(200, json={"results": [[float(ord(task))] for task in tasks]})

    results = asked(httpx.MockTransport(handle), "c", "b", "a")

    assert results == [[99.0], [98.0], [97.0]]


def test_refusal_and_silence_are_errors() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, request=request)

    def hang_up(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone", request=request)

    with pytest.raises(InvalidResponseError, match="500"):
        asked(httpx.MockTransport(refuse), "a")
    with pytest.raises(ConnectionFailedError):
        asked(httpx.MockTransport(hang_up), "a")


def test_bfloat16_may_differ_by_its_rounding_and_loosens_nothing_for_others() -> None:
    rounded = {System.NUNATAK_BFLOAT16: [[0.32, 0.68]], System.NUNATAK: [[0.3, 0.7]]}
    check_agreement(rounded)

    with pytest.raises(DisagreementError, match="peft_mixed"):
        check_agreement({**rounded, System.PEFT_MIXED: [[0.31, 0.69]]})
    with pytest.raises(DisagreementError, match="bfloat16"):
        check_agreement({**rounded, System.NUNATAK_BFLOAT16: [[0.4, 0.6]]})
