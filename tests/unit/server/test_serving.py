"""The settings that a server refuses at its start, and the moment of its first request."""

import gc
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings
from nunatak_server import serving
from nunatak_server.backbones import Backbones
from nunatak_server.serving import begin, serve
from nunatak_server.settings import ServerSettings


def test_loaded_objects_leave_the_collector_before_the_address_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))

    def set_threshold(*_: int) -> None:
        done.append("rare")

    monkeypatch.setattr(gc, "set_threshold", set_threshold)

    begin("http://127.0.0.1:1", max_requests=4, announce=done.append)

    assert done == ["frozen", "rare", "http://127.0.0.1:1"]


def test_settings_that_do_not_fit_the_backbone_are_refused_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backbone = tiny_backbone(num_layers=1)

    def load(_: ServerSettings) -> Backbones:
        return Backbones(backbone)

    monkeypatch.setattr(serving, "load_on_own_thread", load)

    with raises("invalid_settings", match="max_batch_tokens"):
        serve(make_settings(registry=str(tmp_path), max_batch_tokens=1), create_registry=True)


def test_a_server_makes_no_registry_from_a_typing_error(tmp_path: Path) -> None:
    with raises("registry_missing"):
        serve(make_settings(registry=str(tmp_path / "tpyo")))

    assert list(tmp_path.iterdir()) == []
