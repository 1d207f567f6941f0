"""How the parts of a server are put together."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.serving import make_settings
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.engine.engine import Engine
from nunatak_server.residency.giving_way import GivingWay
from nunatak_server.residency.residency import Residency
from nunatak_server.runtime import Runtime


@contextmanager
def runtime_of(folder: Path, backbone: Backbone) -> Generator[Runtime]:
    with Registry.open(folder) as registry:
        yield Runtime(
            settings=make_settings(registry=str(folder)),
            backbone=backbone,
            registry=registry,
            on_fatal=lambda _: None,
        )


@pytest.mark.parametrize(("rows", "waiting"), [(0, 0), (0, 1), (1, 1), (2, 1), (2, 3), (1, 0)])
def test_loads_give_way_to_more_texts_than_wait_for_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rows: int, waiting: int
) -> None:
    monkeypatch.setattr(Engine, "num_rows", rows)
    monkeypatch.setattr(Residency, "num_waiting_for_loads", waiting)

    with runtime_of(tmp_path, tiny_backbone()) as runtime:
        assert runtime.should_loads_give_way() == (rows > waiting)
        monkeypatch.setattr(Backbone, "device", torch.device("meta"))
        assert not runtime.should_loads_give_way()


def test_what_is_read_from_the_store_is_read_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[GivingWay]()

    def note_pause(give_way: GivingWay) -> None:
        pauses.append(give_way)

    monkeypatch.setattr(GivingWay, "__call__", note_pause)

    with runtime_of(tmp_path, tiny_backbone()) as runtime:
        manifest = publish_tiny_task(runtime.registry, runtime.backbone)
        runtime.host_tier.read(manifest)

    assert len(pauses) == 1
