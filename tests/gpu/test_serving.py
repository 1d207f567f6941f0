"""A whole server on the device, over HTTP."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from doubles.backbones import save_tiny_backbone
from doubles.gpu import DEVICE
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_server.engine.backbones import load_serving_backbone

METHODS: tuple[Method, ...] = (
    Lora(rank=4, alpha=4.0, targets=QUERY_AND_VALUE),
    TopK(num_layers=1),
    Bottleneck(size=8),
    HeadOnly(),
)
NUM_TASKS, NUM_REQUESTS = 12, 96
TEXTS = ["where is my parcel?", "thank you", "this is the third letter about one bill"]
TOLERANCE = 0.05
"""Largest difference of a score in bfloat16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def host(folder: Path) -> Backbone:
    return load_backbone(folder)


def scores(client: httpx.Client, index: int) -> dict[str, float]:
    """The score of each label, for one text by one task."""
    path = f"/v1/tasks/task-{index % NUM_TASKS}/predict"
    answer = client.post(path, json={"inputs": TEXTS[index % len(TEXTS)]})
    answer.raise_for_status()
    return {it["label"]: it["score"] for it in answer.json()["outputs"]}


def test_answers_over_http_are_right_while_versions_come_and_go(
    tmp_path: Path, folder: Path, host: Backbone
) -> None:
    """The budget holds few of the tasks, so most requests load a version next to the batches."""
    settings = make_settings(
        backbone=str(folder), device=str(DEVICE), dtype="bfloat16", task_memory_bytes=50_000
    )
    served = load_serving_backbone(settings)
    with Registry.open(tmp_path) as registry:
        for index in range(NUM_TASKS):
            method = METHODS[index % len(METHODS)]
            publish_tiny_task(registry, host, task=f"task-{index}", method=method, seed=index)
        with running_server(host, registry) as address, httpx.Client(base_url=address) as client:
            expected = [scores(client, index) for index in range(NUM_REQUESTS)]
        with (
            running_server(served, registry, settings) as address,
            httpx.Client(base_url=address, timeout=60) as client,
            ThreadPoolExecutor(8) as pool,
        ):
            answers = list(pool.map(partial(scores, client), range(NUM_REQUESTS)))
            metrics = client.get("/metrics").text

    for found, right in zip(answers, expected, strict=True):
        assert found == pytest.approx(right, abs=TOLERANCE)
    evicted = re.findall(r"^nunatak_evictions_total(?:{.*})? (\S+)$", metrics, flags=re.MULTILINE)
    assert sum(map(float, evicted)) > 0
    assert torch.device(served.device).type == DEVICE.type
