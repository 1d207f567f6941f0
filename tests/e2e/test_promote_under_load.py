import asyncio
import signal
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone
from doubles.processes import ServerProcess, server_process
from doubles.tasks import (
    LABELS,
    TOP_LAYER,
    logits_alone,
    publish_tiny_task,
    random_parameters,
    spec_of,
)
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry

NUM_REQUESTS = 1000
NUM_CALLERS = 8
FLIP_EVERY_S = 0.05
TOLERANCE = 1e-4
TEXTS = ["where is my parcel?", "hi", "please call me back, it is urgent", "x" * 60]
SEEDS = {1: 11, 2: 22}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return load_backbone(folder)


@pytest.fixture
def server(tmp_path: Path, folder: Path, backbone: Backbone) -> Generator[ServerProcess]:
    with Registry.open(tmp_path) as registry:
        for version, seed in SEEDS.items():
            assert publish_tiny_task(registry, backbone, seed=seed).version == version
        registry.promote("tone", "prod", 1)
    with server_process(registry=tmp_path, backbone=folder) as running:
        yield running


def oracle(backbone: Backbone) -> dict[tuple[int, str], dict[str, float]]:
    """Logits of each version for each text, by label."""
    spec = spec_of(backbone, TOP_LAYER, num_labels=len(LABELS))
    return {
        (version, text): dict(zip(LABELS, logits, strict=True))
        for version, seed in SEEDS.items()
        for text, logits in zip(
            TEXTS,
            logits_alone(backbone, spec, random_parameters(spec, backbone, seed=seed), TEXTS),
            strict=True,
        )
    }


async def ask(client: httpx.AsyncClient, text: str) -> tuple[int, str, dict[str, float]]:
    # The oracle cuts a text that is too long.
    body = {"inputs": text, "parameters": {"function_to_apply": "none", "on_long": "cut"}}
    answer = await client.post("/v1/tasks/tone/predict", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert answer.headers["x-task-version"] == f"tone/{found['version']}"
    return found["version"], text, {item["label"]: item["score"] for item in found["outputs"]}


async def flip(client: httpx.AsyncClient, done: asyncio.Event) -> int:
    """Move the alias back and forth until the load is done; return the number of moves."""
    num_flips = 0
    while not done.is_set():
        version = 2 - num_flips % 2
        answer = await client.put("/v1/tasks/tone/aliases/prod", json={"version": version})
        assert answer.status_code == 200, answer.text
        num_flips += 1
        try:
            await asyncio.wait_for(done.wait(), FLIP_EVERY_S)
        except TimeoutError:
            continue
    return num_flips


async def test_every_answer_matches_the_version_it_names(
    server: ServerProcess, backbone: Backbone
) -> None:
    async def scenario() -> tuple[list[tuple[int, str, dict[str, float]]], int]:
        done = asyncio.Event()
        remaining = iter(range(NUM_REQUESTS))
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:

            async def call() -> list[tuple[int, str, dict[str, float]]]:
                return [await ask(client, TEXTS[index % len(TEXTS)]) for index in remaining]

            flipping = asyncio.create_task(flip(client, done))
            try:
                answers = await asyncio.gather(*(call() for _ in range(NUM_CALLERS)))
            finally:
                done.set()
            return [answer for own in answers for answer in own], await flipping

    answers, num_flips = await scenario()

    expected = oracle(backbone)
    assert len(answers) == NUM_REQUESTS
    assert num_flips > 5
    assert {version for version, _, _ in answers} == {1, 2}
    for version, text, logits in answers:
        assert logits == pytest.approx(expected[version, text], abs=TOLERANCE)


async def test_a_signal_ends_the_process_after_what_it_accepted(server: ServerProcess) -> None:
    async def scenario() -> list[int]:
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
            body = {"inputs": TEXTS * 16}
            calls = [
                asyncio.create_task(client.post("/v1/tasks/tone/predict", json=body))
                for _ in range(NUM_CALLERS)
            ]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            server.process.send_signal(signal.SIGTERM)
            return [(await call).status_code for call in calls]

    statuses = await scenario()

    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 1
    assert server.process.wait(timeout=60) in {0, -signal.SIGTERM}
