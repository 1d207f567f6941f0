"""Streams of verdicts over HTTP, with real tasks, by both clients and by bad callers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from doubles.access import add_key
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client, running_server, running_transport
from doubles.tasks import publish_names, publish_tiny_task
from nunatak_client import AsyncClient, Client, NotFoundError, NunatakClientError
from nunatak_contract.enums import StreamEventKind, VerdictAction
from nunatak_contract.wire import PolicyVerdict, StreamEvent
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import Scope
from nunatak_server.http.streams import LINES_A_TURN

GAUGES = ("nunatak_waiting_requests", "nunatak_running_requests", "nunatak_held_body_bytes")
LINES, EVENTS = "application/x-ndjson", "text/event-stream"
GUARD = "/v1/verdicts/guard"
STREAM = f"{GUARD}/stream"
TEXT = "ann met bob in oslo and\u2028then \x85 they went to see the sea . " * 12


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone, task="tone", labels=("calm", "urgent"))
    publish_names(opened, backbone)
    masks = make_rule(when("names", "X"), name="names", action=VerdictAction.MASK)
    never = make_rule(when("tone", "urgent", threshold=1.0), name="tone")
    opened.policies.put(make_policy(masks, never))
    always = make_rule(when("tone", "urgent", threshold=1e-6), name="tone")
    opened.policies.put(make_policy(always, name="strict"))


def lines_of(text: str, *, size: int = 7) -> bytes:
    chunks = [text[it : it + size] for it in range(0, len(text), size)]
    return b"".join(json.dumps({"text": it}).encode() + b"\n" for it in chunks)


def events_in(body: str) -> list[StreamEvent]:
    return [StreamEvent.model_validate_json(it) for it in body.splitlines() if it]


def shown(events: list[StreamEvent]) -> str:
    return "".join(it.text for it in events)


async def whole(client: httpx.AsyncClient) -> PolicyVerdict:
    answer = await client.post(GUARD, json={"inputs": TEXT})
    return PolicyVerdict.model_validate_json(answer.content)


def same(verdict: PolicyVerdict | None, expected: PolicyVerdict) -> bool:
    """Return whether verdicts are equal, and scores to the rounding of other batches."""
    assert verdict is not None
    scores = [it.score for it in expected.rules]
    assert [it.score for it in verdict.rules] == pytest.approx(scores, abs=1e-5)
    assert sorted(verdict.tasks) == sorted(expected.tasks)
    bare = {"rules": {"__all__": {"score"}}, "tasks": True}
    return verdict.model_dump(exclude=bare) == expected.model_dump(exclude=bare)


async def post(client: httpx.AsyncClient, body: bytes, kind: str, **headers: str) -> httpx.Response:
    return await client.post(STREAM, content=body, headers={"content-type": kind, **headers})


async def test_lines_events_and_plain_text_give_the_verdict_of_the_whole_text(
    client: httpx.AsyncClient,
) -> None:
    bodies = {
        LINES: lines_of(TEXT),
        EVENTS: b"".join(b"data: %b\n\n" % it for it in lines_of(TEXT).splitlines())
        + b"data: [DONE]\n\n",
        "text/plain": TEXT.encode(),
    }
    expected = await whole(client)
    for kind, body in bodies.items():
        answer = await post(client, body, kind)
        events = events_in(answer.text)

        assert answer.status_code == 200
        assert events[-1].final
        assert same(events[-1].verdict, expected)
        assert (expected.action, shown(events)) == (VerdictAction.MASK, expected.texts)
    answer = await post(client, bodies[LINES], LINES, accept=EVENTS)
    blocks = answer.text.strip().split("\n\n")
    assert answer.headers["content-type"].startswith(EVENTS)
    assert blocks[-1].startswith("event: verdict\ndata: {")
    metrics = (await client.get("/metrics")).text
    assert (
        'verdict_rules_total{action="mask",mode="enforce",policy="guard",rule="names"} 5.0'
        in metrics
    )


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        (LINES, b"", "empty_text"),
        (LINES, b'{"text": "a"}\n{"text": 1}\n', "invalid_request"),
        (LINES, b'{"text": "a", "text": "b"}\n', "invalid_request"),
        (LINES, b'[["text", "a"]]', "invalid_request"),
        (LINES, b'{"text": "a"', "invalid_json"),
        (LINES, b"[" * 100_000, "invalid_json"),
        (LINES, lines_of("a " * 20_000, size=1000), "text_too_long"),
        (LINES, b" " * 1_100_000, "body_too_large"),
        (EVENTS, b'data: [DONE]\n\ndata: {"text": "a"}\n', "invalid_request"),
        (EVENTS, b'\xef\xbb\xbfdata: {"text": "a"}\n\ndata: {"text": "b"}\n', "invalid_request"),
        (EVENTS, b'data: {"text": "a"}\n\nDATA: {"text": "b"}\n', "invalid_request"),
        ("text/plain", b"a \xff b", "invalid_text"),
        ("text/plain", b"a \xf0\x9f", "invalid_text"),
    ],
)
async def test_bad_bodies_end_with_an_error_that_blocks(
    client: httpx.AsyncClient, kind: str, body: bytes, code: str
) -> None:
    answer = await post(client, body, kind)

    last = events_in(answer.text)[-1]
    assert (last.event, last.final, last.action) == (
        StreamEventKind.ERROR,
        True,
        VerdictAction.BLOCK,
    )
    assert last.error is not None
    assert last.error.code == code


async def test_a_text_without_end_is_refused_in_time(
    backbone: Backbone, registry: Registry
) -> None:
    async def drops() -> AsyncGenerator[str]:
        while True:
            yield " "
            await asyncio.sleep(0.05)

    with running_server(backbone, registry, make_settings(max_stream_s=1)) as address:
        async with AsyncClient(address) as client:
            with pytest.raises(NunatakClientError, match="within 1 second") as caught:
                _ = [it async for it in client.judge_stream("guard", drops())]

    assert caught.value.code == "receive_timeout"


@pytest.mark.parametrize(("kind", "line"), [(LINES, b"\n"), (EVENTS, b":\n")])
async def test_many_short_lines_leave_turns_to_others(
    client: httpx.AsyncClient, kind: str, line: bytes
) -> None:
    num_turns = 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(others())
    await post(client, line * 400_000, kind)
    turning.cancel()

    assert num_turns > 400_000 / LINES_A_TURN


async def test_wrong_media_types_and_unknown_policies_are_refused_at_once(
    client: httpx.AsyncClient,
) -> None:
    types = ("application/json", 'text/plain; Charset="UTF-16"; x=y', "text/plain; charset =utf-16")
    refused = [(await post(client, b"{}", it)).json()["code"] for it in types]
    codes = list[tuple[int, str]]()
    for encoding in ("gzip", "Identity"):
        headers = {"content-type": LINES, "content-encoding": encoding}
        answer = await client.post("/v1/verdicts/nothing/stream", content=b"", headers=headers)
        codes.append((answer.status_code, answer.json()["code"]))

    assert refused == ["unsupported_stream_type"] * len(types)
    assert codes == [(415, "compressed_body"), (404, "policy_not_found")]


async def test_a_stream_that_begins_while_the_server_drains_is_refused(
    backbone: Backbone, registry: Registry
) -> None:
    async with running_transport(backbone, registry) as transport:
        pass
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        refused = await post(client, b'{"text": "a"}', LINES)

    assert (refused.status_code, refused.json()["code"]) == (503, "draining")


async def test_text_is_shown_while_the_rest_still_comes(address: str) -> None:
    events = list[StreamEvent]()

    async def chunks() -> AsyncGenerator[str]:
        yield TEXT
        while not shown(events):
            # The source pauses: events are read after empty chunks too.
            yield ""
            await asyncio.sleep(0.002)
        yield TEXT

    async with AsyncClient(address) as client:
        async for event in client.judge_stream("guard", chunks()):
            events.append(event)

    assert events[-1].verdict is not None
    assert events[-1].verdict.texts == shown(events)


def test_the_blocking_client_judges_and_a_block_stops_the_chunks(address: str) -> None:
    with Client(address) as client:
        events = list(client.judge_stream("guard", [TEXT, TEXT]))
        *_, last = client.judge_stream("strict", [TEXT, TEXT])
        whole = client.judge("guard", [TEXT + TEXT], deadline_s=60)
        with pytest.raises(NotFoundError):
            list(client.judge_stream("nothing", [TEXT]))
        with pytest.raises(NotFoundError):
            client.judge("nothing", TEXT)
        with pytest.raises(NunatakClientError) as caught:
            list(client.judge_stream("guard", []))

    assert last.verdict is not None
    assert last.verdict.action is VerdictAction.BLOCK
    assert events[-1].verdict is not None
    assert whole.texts == (events[-1].verdict.texts,)
    assert caught.value.code == "empty_text"


async def test_a_key_sees_only_streams_of_policies_whose_tasks_it_may_ask(
    backbone: Backbone, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "others", scopes=[Scope.PREDICT], tasks=["other"])
    async with running_client(backbone, registry, make_settings(api_keys_file=file)) as client:
        denied = await post(client, lines_of(TEXT), LINES)
        hidden = await post(client, lines_of(TEXT), LINES, **key)

    assert (denied.status_code, hidden.status_code) == (401, 404)


async def test_callers_that_break_off_or_read_little_leave_nothing(
    backbone: Backbone, registry: Registry
) -> None:
    with running_server(backbone, registry) as address:
        url = httpx.URL(address)
        head = f"POST {STREAM} HTTP/1.1\r\nhost: x\r\ncontent-type: {LINES}\r\n".encode()
        head += b"transfer-encoding: chunked\r\n\r\n"
        body = lines_of(TEXT)

        async def call(*, breaks_off: bool, size: int = 65536) -> bytes:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(head + b"%x\r\n%b\r\n" % (len(body), body))
            await writer.drain()
            received = b""
            if not breaks_off:
                writer.write(b"0\r\n\r\n")
                while not received.endswith(b"\r\n0\r\n\r\n"):
                    received += await reader.read(size)
            writer.close()
            return received

        calls = [call(breaks_off=bool(number % 2), size=64 + number) for number in range(60)]
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*calls)
        assert all(b'"verdict":{' in it for it in answers[::2])

        async with httpx.AsyncClient(base_url=address) as client, asyncio.timeout(30):
            while await held_by(client):
                pass


async def held_by(client: httpx.AsyncClient) -> list[str]:
    """Return the gauges of requests that are not 0."""
    found = await client.get("/metrics")
    lines = (it for it in found.text.splitlines() if it.startswith(GAUGES))
    return [it for it in lines if float(it.rsplit(" ", 1)[1])]
