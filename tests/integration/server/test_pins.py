"""Pins of the settings hold from the start of the process."""

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=1)


@pytest.fixture
def registry(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path) as opened:
        for seed in range(2):
            publish_tiny_task(opened, backbone, task="tone", seed=seed)
        opened.promote("tone", "prod", 1)
        publish_tiny_task(opened, backbone, task="topic")
        yield opened


def held(backbone: Backbone, registry: Registry, pins: str) -> dict[str, bool]:
    """The versions in memory when the server becomes ready, and whether each is pinned."""

    async def ask() -> dict[str, bool]:
        async with running_client(backbone, registry, make_settings(pins=pins)) as client:
            tasks = (await client.get("/v1/memory")).json()["tasks"]
        return {f"{it['task']}/{it['version']}": it["pinned"] for it in tasks}

    return asyncio.run(ask())


def test_pins_are_in_memory_before_the_first_request(
    backbone: Backbone, registry: Registry
) -> None:
    assert held(backbone, registry, "") == {}
    assert held(backbone, registry, "tone, topic/1") == {"tone/1": True, "topic/1": True}


def test_a_pin_that_cannot_be_served_spares_the_others(
    backbone: Backbone, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert held(backbone, registry, "nope@prod,tone") == {"tone/1": True}

    assert "nope@prod is not pinned: " in caplog.text
