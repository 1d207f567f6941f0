"""Laws of the race of five classifiers: equal tasks, fair ratios, and its page."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from benchmarks.harness.makers import TaskPlan, draft, export_adapter, plans, publish_missing
from benchmarks.harness.recording import Figure, Sheet, latest
from benchmarks.papers import shared_quality
from benchmarks.papers.shared_quality import SETS, TRIES, Run, chosen
from benchmarks.savings.clients import PlainClient
from benchmarks.savings.five import HEAD, MIDDLE, RACERS, TOP, Timed, Turn, record, timed
from benchmarks.savings.race import DisagreementError, check_agreement
from benchmarks.savings.systems import System
from doubles.backbones import tiny_backbone
from nunatak_client import ConnectionFailedError, InvalidResponseError
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK
from nunatak_registry import Registry
from nunatak_versions import load_task

LORA = Lora(rank=2, alpha=4.0, targets=tuple(LinearMap), first_layer=1)
METHODS = (Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), TopK(num_layers=1))
ADDRESSES = {"a": "http://one", "b": "http://two", "c": "http://one"}


class Counting:
    """A client that answers late, and counts its open requests."""

    def __init__(self) -> None:
        self.texts, self.open, self.most = list[str](), 0, 0

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        """Answer after the other clients had their turns."""
        self.texts.append(text)
        self.open += 1
        self.most = max(self.most, self.open)
        for _ in range(10):
            await asyncio.sleep(0)
        self.open -= 1


def turn(*, per_s: float, p95_ms: float, mib: float) -> Turn:
    found = Timed(per_s=per_s, p50_ms=p95_ms / 2, p95_ms=p95_ms)
    alone: dict[str, Timed] = dict.fromkeys((TOP, MIDDLE, HEAD), found)
    return Turn(sequential=found, concurrent=found, alone=alone, pss_mib=mib, rss_mib=mib)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """The figures of a race in which each of two systems is the better one in some measure."""
    slow = dict.fromkeys(RACERS, turn(per_s=1.0, p95_ms=100.0, mib=1000.0))
    turns = slow | {
        System.NUNATAK: turn(per_s=6.0, p95_ms=10.0, mib=100.0),
        System.PACKED_MODELS: turn(per_s=3.0, p95_ms=80.0, mib=600.0),
        System.NUNATAK_FULL: turn(per_s=2.0, p95_ms=20.0, mib=500.0),
    }
    sheet = Sheet(command="c", file=tmp_path_factory.mktemp("race") / "figures.jsonl", rounds=2)
    record("minilm", [turns, turns], sheet)
    scores = [(0.5, 0.5), (0.6, 0.7), *[(0.6, 0.6)] * 3]
    runs = [
        Run(name=it, group=TRIES[it][0], dev=dev, test=test)
        for it, (dev, test) in zip(TRIES, scores, strict=True)
    ]
    shared_quality.record({name: [runs] for name in SETS}, sheet)
    return latest(sheet.file)


def asked(handler: httpx.MockTransport, *tasks: str) -> list[list[float]]:
    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient(transport=handler) as client:
            return await PlainClient(client, ADDRESSES).probabilities(tasks, "text")

    return asyncio.run(ask())


@pytest.mark.parametrize("method", [TopK(num_layers=1), LORA, HeadOnly()], ids=lambda it: it.kind)
def test_a_full_model_of_a_task_answers_as_the_task(method: Method) -> None:
    backbone = tiny_backbone(num_layers=3)
    plan = TaskPlan(name="t", method=method, seed=1)

    shared, full = (draft(it, backbone) for it in (plan, replace(plan, is_merged=True)))

    assert full.manifest.split_depth is None
    assert len(full.blobs["parameters"]) > len(shared.blobs["parameters"])
    (ours,), (merged,) = shared.manifest.probe.logits, full.manifest.probe.logits
    assert ours == pytest.approx(merged, abs=1e-4)


def test_each_text_is_asked_once_and_no_more_at_once_than_clients() -> None:
    client, texts = Counting(), [f"text {number}" for number in range(20)]

    found = asyncio.run(timed(client, ["a", "b"], texts, clients=4))

    assert client.texts == texts
    assert client.most == 4
    assert found.per_s > 0
    assert 0 < found.p50_ms <= found.p95_ms


def test_ratios_are_over_the_better_system_of_each_measure(figures: dict[str, Figure]) -> None:
    assert figures["race.five.sequential.minilm"].value == 2.0
    assert figures["race.five.sequential.minilm"].met is False
    assert figures["race.five.c16.p95.minilm"].value == 0.5
    assert figures["race.five.memory.minilm"].value == 0.2
    assert figures["race.five.memory.minilm"].met
    assert figures["race.five.minilm.nunatak_full.c16_p95_ms"].value == 20.0


def test_dev_examples_choose_and_test_examples_score(figures: dict[str, Figure]) -> None:
    better_on_test = Run(name="full-0.0001", group="full", dev=0.1, test=0.9)
    better_on_dev = Run(name="full-0.0003", group="full", dev=0.2, test=0.3)

    assert chosen([better_on_test, better_on_dev], "full") is better_on_dev
    assert chosen([better_on_test, better_on_dev], "full-0.0001") is better_on_test
    assert figures["race.five.f1_gap"].value == pytest.approx(0.1)
    assert figures["race.five.f1_gap"].met is False


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
