"""The moment at which a server says that it takes requests."""

import gc

import pytest

from nunatak_server.serve import begin


def test_what_is_loaded_is_out_of_the_collector_before_the_address_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))

    begin("http://127.0.0.1:1", announce=done.append)

    assert done == ["frozen", "http://127.0.0.1:1"]
