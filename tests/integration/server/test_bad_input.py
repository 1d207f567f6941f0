"""A real server gets thousands of bad requests: none harms the server, and none is accepted."""

import asyncio
import logging
import os
from pathlib import Path

import httpx
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from doubles.backbones import tiny_backbone, tiny_tokenizer
from doubles.bad_requests import corpus
from doubles.events import catch_from
from doubles.raw_request import CANARY, GOOD_BODY, PREDICT, num_open_files, send_all
from doubles.serving import make_settings, serving_tone
from doubles.tasks import publish_tiny_task
from nunatak_server.settings import ServerSettings

publish = publish_tiny_task
LIMIT_S = 15.0
NUM_MUTATIONS = 50 * int(os.environ.get("ABUSE", "1"))
"""`make abuse` sends many more."""


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(receive_timeout_s=1, keep_alive_s=1)


def told_by(address: str) -> object:
    """The server's answer to a good request, and its account of the task and its aliases."""
    headers = {"content-type": "application/json"}
    answer = httpx.post(address + PREDICT, content=GOOD_BODY, headers=headers).json()
    task = httpx.get(f"{address}/v1/tasks/tone").json()
    return answer, task["aliases"], task["candidates"]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_bad_request_harms_the_server(
    address: str, step: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each fault is there by six requests in turn: in three places of a body, and by two routes.
    requests = corpus(seed=0, num_mutations=NUM_MUTATIONS)[::step]
    assert len(requests) >= 1900 // step
    before, files_before = told_by(address), num_open_files()
    catch_from(("uvicorn.error",), caplog, monkeypatch)

    received = asyncio.run(send_all(address, requests, limit_s=LIMIT_S))

    faults = [f"{it.fault}: {it.request.name}: {it.data[:200]!r}" for it in received if it.fault]
    if faults:
        pytest.fail("\n".join(faults))
    assert told_by(address) == before
    assert httpx.get(f"{address}/readyz").status_code == 200
    assert num_open_files() <= files_before + 5
    assert [it.message for it in caplog.records if it.levelno >= logging.ERROR] == []
    assert CANARY not in caplog.text


@pytest.mark.parametrize("length", [60, 2000])
def test_a_text_that_the_tokenizer_gives_up_on_is_refused(tmp_path: Path, length: int) -> None:
    library = tiny_tokenizer("bert")
    library.pre_tokenizer = Split(Regex("(a+)+$"), behavior="isolated")
    with serving_tone(tmp_path, backbone=tiny_backbone(tokenizer=library)) as address:
        refused = httpx.post(address + PREDICT, json={"inputs": ["hi", "a" * length + "!"]})
        answered = httpx.post(address + PREDICT, json={"inputs": "hi"})

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_text")
    assert refused.json()["detail"].startswith("input 1: the text contains a run of characters")
    assert refused.json()["position"] == 1
    assert answered.status_code == 200
