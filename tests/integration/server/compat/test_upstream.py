"""A second real server answers unknown questions, and unsure ones, over real HTTP."""

import asyncio
import json
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.compat import TEXT, post
from doubles.questions import QUESTIONS, UNKNOWN, URGENT, body, publish_all
from doubles.serving import make_settings, running_client, running_server
from doubles.terminals import nunatak
from doubles.upstreams import noul, running_upstream
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_model import Backbone
from nunatak_registry import Registry

KEY = "a-secret-key-0815"
PATHS = ("/v1/systemone", "/v1/decisions")


@pytest.fixture(scope="module")
def other(backbone: Backbone, cards: Registry) -> Generator[str]:
    """The upstream: a server that knows all questions."""
    with running_server(backbone, cards) as address:
        yield address


def upstream(url: str, **settings: object) -> dict[str, object]:
    return {"decisions_unknown": "upstream", "decisions_upstream": url, **settings}


@pytest.fixture
def empty(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    """A registry whose only card is that of `URGENT`, bound to a task of its own."""
    with Registry.open(tmp_path / "empty") as registry:
        publish_all(registry, backbone, only=["u"])
        yield registry


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_says_what_its_upstream_says(
    empty: Registry, backbone: Backbone, other: str, path: str
) -> None:
    asked = {name: it for name, it in QUESTIONS.items() if path == PATHS[0] or name != "threat"}
    async with httpx.AsyncClient(base_url=other, timeout=60) as client:
        direct = (await post(client, "/v1/systemone", body(asked)))["answers"]
    settings = make_settings(**upstream(f"{other}{path}"))
    async with running_client(backbone, empty, settings) as client:
        answers = (await post(client, "/v1/systemone", body(asked)))["answers"]
        metrics = (await client.get("/metrics")).text

    for name in asked.keys() - {"u"}:
        assert answers[name]["x_source"] == {"kind": "upstream", "model": "jev-latest"}
        for part in direct[name].keys() - {"x_source"}:
            expected: Any = direct[name][part]
            is_text = isinstance(expected, str) or part == "legend"
            assert answers[name][part] == (expected if is_text else pytest.approx(expected))
    assert answers["u"]["x_source"]["kind"] == "task"
    number = len(asked) - 1
    assert f'nunatak_decisions_total{{by="upstream",card=""}} {number}.0' in metrics


def bind(registry: Registry, **fields: object) -> None:
    newest = registry.questions.get("u").document.model_dump()
    registry.questions.put(QuestionCard.model_validate({**newest, **fields}))


async def test_unsure_texts_go_to_the_upstream_and_are_kept_for_training(
    empty: Registry, backbone: Backbone, tmp_path: Path
) -> None:
    bind(empty, ask_upstream_below=1.0)
    folder = tmp_path / "texts"
    with running_upstream(noul(0.75)) as fake:
        settings = make_settings(**upstream(fake.url, collect=folder))
        async with running_client(backbone, empty, settings) as client:
            answers = (await post(client, "/v1/systemone", body({"u": URGENT})))["answers"]
            await post(client, "/v1/systemone", body({"x": UNKNOWN}))
            metrics = (await client.get("/metrics")).text

    source = answers["u"]["x_source"]
    assert (answers["u"]["noul"], source["kind"], source["task"]) == (0.75, "upstream", "u/1")
    assert 0 <= source["confidence"] < 1
    assert 'nunatak_decisions_unsure_total{card="u",upstream="' in metrics
    rows = [
        json.loads((folder / f"{TypedQuestion.model_validate(it).digest}.jsonl").read_text())
        for it in (URGENT, UNKNOWN)
    ]
    assert [(it["text"], it["probabilities"]) for it in rows] == [
        (TEXT, {"urgent": 0.75, "calm": 0.25}),
        (TEXT, {"yes": 0.75, "no": 0.25}),
    ]
    listed = nunatak("question", "collected", str(folder), "--json").json()
    match listed:
        case {"collected": [{"rows": 1}, {"rows": 1}]}:  # pyrefly: ignore[not-callable, unused-ignore]
            assert TEXT not in json.dumps(listed)
        case other:
            raise AssertionError(other)
    shown = nunatak("question", "collected", str(folder)).stdout
    assert "Is it urgent" in shown
    patterns = [it for it in shown.split() if it.endswith("*.jsonl")]
    assert [len(list(folder.glob(it))) for it in patterns] == [1, 1]
    assert nunatak("question", "collected", str(folder), "--clear").stdout == "removed 2 texts\n"
    assert list(folder.iterdir()) == []


async def test_nothing_tells_the_key_or_the_text(
    empty: Registry, backbone: Backbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text(KEY)
    caplog.set_level(logging.DEBUG, logger="nunatak_server")
    replies: list[object] = [500, {"answers": {"q0": TEXT}}, None, None]
    with running_upstream(lambda _: replies.pop(0)) as fake:
        settings = make_settings(**upstream(fake.url, decisions_upstream_key_file=tmp_path / "key"))
        async with running_client(backbone, empty, settings) as client:
            told = [await client.post("/v1/systemone", json=body({"x": UNKNOWN})) for _ in range(3)]
            told += [await client.get(path) for path in ("/info", "/metrics", "/readyz")]

    assert [it.status_code for it in told] == [502, 502, 502, 200, 200, 200]
    assert {it["authorization"] for it in fake.headers} == {f"Bearer {KEY}"}
    said = "\n".join([it.text for it in told] + [str(it.__dict__) for it in caplog.records])
    assert KEY not in said
    assert TEXT not in said


def test_a_folder_for_texts_that_others_may_read_stops_the_start(
    empty: Registry, backbone: Backbone, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    settings = make_settings(
        **upstream("http://127.0.0.1:1/v1/systemone", collect=tmp_path / "open")
    )

    async def start() -> None:
        async with running_client(backbone, empty, settings):
            raise AssertionError

    with pytest.raises(Exception, match="chmod 700"):
        asyncio.run(start())
