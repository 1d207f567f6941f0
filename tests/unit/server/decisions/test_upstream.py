"""Laws of the upstream: its failures are failures of its questions, in time and without secrets."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from doubles.leases import until
from doubles.refusals import code_of, raises
from doubles.serving import make_settings
from doubles.upstreams import FakeUpstream, Raw, Reply, noul, running_upstream
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import TypedQuestion
from nunatak_contract.upstreams import PROTOCOLS
from nunatak_server.configuration import configure
from nunatak_server.decisions.answers import AnswerSource, AskedQuestion, QuestionAnswer
from nunatak_server.decisions.upstream import MAX_WAITING, Upstream
from nunatak_server.predict.types import Handling

KEY = "a-secret-key-0815"
LATE = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it late?"})
FLAGS = TypedQuestion.model_validate(
    {"type": "choice", "options": [{"value": True}, {"value": "no"}]}
)


@asynccontextmanager
async def asking(reply: Reply, **settings: object) -> AsyncGenerator[tuple[Upstream, FakeUpstream]]:
    with running_upstream(reply) as fake:
        upstream = Upstream(make_settings(decisions_upstream=fake.url, **settings))
        try:
            yield upstream, fake
        finally:
            await upstream.aclose()


async def ask(
    upstream: Upstream, *questions: TypedQuestion, seconds: float = 30.0, caller: str = "ann"
) -> list[QuestionAnswer | NunatakError]:
    asked = [AskedQuestion(question=it, title="the question") for it in questions]
    handling = Handling(default_deadline_s=seconds, caller=caller)
    return list((await upstream.answer(asked, "text", handling=handling)).answers)


async def test_all_questions_go_in_one_call_with_the_key_the_model_and_the_deadline(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    settings = {"decisions_upstream_key_file": tmp_path / "key", "decisions_upstream_model": "m"}
    async with asking(noul(0.75), **settings) as (upstream, fake):
        first, unsayable, second = await ask(upstream, LATE, FLAGS, LATE, seconds=7)

    assert isinstance(first, QuestionAnswer)
    assert isinstance(second, QuestionAnswer)
    assert (first.probabilities, first.by) == ((0.25, 0.75), AnswerSource.UPSTREAM)
    assert first.source == {"kind": "upstream", "model": "m"}
    assert code_of(unsayable) == "upstream_failed"
    (body,), (headers,) = fake.bodies, fake.headers
    assert (body["model"], body["state"], sorted(body["questions"])) == ("m", "text", ["q0", "q1"])
    assert headers["authorization"] == f"Bearer {KEY}"
    assert 0 < int(headers["x-deadline-ms"]) <= 7000


async def test_a_second_reply_behind_a_reply_answers_no_other_call() -> None:
    body = json.dumps(noul(0.75)({"questions": ["q0"]})).encode()
    length = {"content-length": str(len(body))}
    two = body + b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    replies = [Raw(length, two), SURE]
    async with asking(lambda _: replies.pop(0)) as (upstream, _):
        (first,), (second,) = await ask(upstream, LATE), await ask(upstream, LATE)

    assert isinstance(first, QuestionAnswer)
    assert isinstance(second, QuestionAnswer)
    assert (first.probabilities, second.probabilities) == ((0.25, 0.75), (0.0, 1.0))


SURE = {"answers": {"q0": {"type": "noul", "noul": 1.0}}}
PACKED = gzip.compress(json.dumps(SURE).encode())
HOSTILE = {
    "cut before the head": None,
    "with a broken head": Raw({"no name": "secret"}),
    "redirected to no address": Raw({"location": "mailto:x@y", "content-length": "0"}, status=302),
    "compressed": Raw({"content-encoding": "gzip", "content-length": str(len(PACKED))}, PACKED),
    "cut": Raw({"content-length": "1000"}, json.dumps(SURE).encode()),
    "without a length": Raw({"transfer-encoding": "chunked"}, b"zz\r\n"),
    "of half a character": b'{"answers": "\xff"}',
    "nested": b"[" * 100_000,
    "no object": [SURE],
    "of answers in a word": {"answers": "q0"},
    "with another id": {"answers": {"q1": {"type": "noul", "noul": 1.0}}},
    "with one id more": {"answers": {**SURE["answers"], "q1": {"type": "noul", "noul": 1.0}}},
    "with a word as id": {"answers": {"secret": {"type": "noul", "noul": 1.0}}},
    "with a number beyond all": b'{"answers": {"q0": {"type": "noul", "noul": 1e999}}}',
    "with a number as an answer": {"answers": {"q0": 1, "secret": 1}},
    "too long": b'"' + b"x" * 9 * 1024**2 + b'"',
    "with true as a number": {"answers": {"q0": {"type": "noul", "noul": True}}},
}


@pytest.mark.parametrize(
    ("reply", "said"),
    [(it, str(it)) for it in (301, 401, 404, 429, 500, 503)]
    + [(it, "") for it in HOSTILE.values()],
    ids=["301", "401", "404", "429", "500", "503", *HOSTILE],
)
async def test_a_refusal_or_a_hostile_reply_is_no_answer_and_is_asked_for_once(
    reply: object, said: str
) -> None:
    async with asking(lambda _: reply) as (upstream, fake):
        (found,) = await ask(upstream, LATE)

    assert code_of(found) == "upstream_failed"
    assert said in str(found)
    assert "secret" not in str(found)
    assert len(fake.bodies) == 1


async def test_identity_in_any_spelling_is_no_compression() -> None:
    body = json.dumps(SURE).encode()
    plain = Raw({"content-encoding": "Identity", "content-length": str(len(body))}, body)
    async with asking(lambda _: plain) as (upstream, _):
        (found,) = await ask(upstream, LATE)

    assert isinstance(found, QuestionAnswer)


async def test_a_redirect_and_a_cookie_change_no_later_call(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    with running_upstream(noul(1.0)) as elsewhere:
        left = {"location": elsewhere.url, "set-cookie": "a=1; Path=/", "content-length": "0"}
        replies: list[object] = [Raw(left, status=307), SURE]
        settings = {"decisions_upstream_key_file": tmp_path / "key"}
        async with asking(lambda _: replies.pop(0), **settings) as (upstream, fake):
            (redirected,), (answered,) = await ask(upstream, LATE), await ask(upstream, LATE)

    assert code_of(redirected) == "upstream_failed"
    assert isinstance(answered, QuestionAnswer)
    assert elsewhere.bodies == []
    assert "cookie" not in fake.headers[1]


async def test_a_server_that_is_not_there_fails_the_questions() -> None:
    async with asking(noul(1.0)) as (_, fake):
        url = fake.url
    upstream = Upstream(make_settings(decisions_upstream=url))

    (found,) = await ask(upstream, LATE)

    assert code_of(found) == "upstream_failed"
    await upstream.aclose()


async def test_a_late_upstream_fails_by_its_own_limit_or_by_the_deadline_of_the_caller() -> None:
    async with asking(noul(1.0), decisions_upstream_timeout_ms=50) as (upstream, fake):
        fake.gate.clear()
        (by_limit,) = await ask(upstream, LATE)
        (by_caller,) = await ask(upstream, LATE, seconds=0.02)

    assert (code_of(by_limit), code_of(by_caller)) == ("upstream_failed", "deadline_exceeded")


async def test_a_call_that_has_waited_tells_the_time_that_is_left() -> None:
    async with asking(noul(1.0), decisions_upstream_calls=1) as (upstream, fake):
        fake.gate.clear()
        calls = [asyncio.create_task(ask(upstream, LATE, seconds=7)) for _ in range(2)]
        await until(lambda: bool(fake.headers))
        await asyncio.sleep(0.05)
        fake.gate.set()
        await asyncio.gather(*calls)

    first, second = (int(it["x-deadline-ms"]) for it in fake.headers)
    assert second <= first - 40


async def test_calls_and_waiting_calls_are_bounded_and_no_caller_keeps_others_out(
    tmp_path: Path,
) -> None:
    keys = {"api_keys_file": tmp_path / "keys"}
    async with asking(noul(1.0), decisions_upstream_calls=1, **keys) as (upstream, fake):
        fake.gate.clear()
        many = 2 * (1 + MAX_WAITING)
        flood = [asyncio.create_task(ask(upstream, LATE, caller="eve")) for _ in range(many)]
        await asyncio.sleep(0)
        other = asyncio.create_task(ask(upstream, LATE, caller="ann"))
        await asyncio.sleep(0)
        most = len(fake.bodies)
        fake.gate.set()
        found = [it for one in await asyncio.gather(*flood) for it in one]
        (of_other,), (after,) = await other, await ask(upstream, LATE, caller="eve")

    answered = sum(isinstance(it, QuestionAnswer) for it in found)
    refused = {code_of(it) for it in found if isinstance(it, NunatakError)}
    assert most <= 1
    assert 0 < answered < 1 + MAX_WAITING
    assert refused == {"share_exceeded"}
    assert isinstance(of_other, QuestionAnswer)
    assert isinstance(after, QuestionAnswer)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decisions_unknown": "upstream"}, "^decisions_upstream must be set"),
        ({"collect": "texts"}, "must be set"),
        ({"decisions_upstream": "http://host/v1/embed"}, "/v1/systemone"),
        ({"decisions_upstream": "ftp://host/v1/systemone"}, "/v1/systemone"),
        ({"decisions_upstream": "/v1/systemone"}, "/v1/systemone"),
        ({"decisions_upstream": f"https://{KEY}@host/v1/systemone"}, "key_file"),
        ({"decisions_upstream": f"https://host/v1/systemone#{KEY}"}, "key_file"),
        ({"decisions_upstream": "https://host\n/v1/systemone"}, "/v1/systemone"),
        ({"decisions_upstream": "https:///v1/systemone"}, "/v1/systemone"),
        ({"decisions_upstream": f"https://u:{KEY}@host/v1/systemone"}, "key_file"),
        ({"decisions_upstream": f"https://host/v1/systemone?key={KEY}"}, "key_file"),
    ],
)
def test_settings_without_a_usable_upstream_are_refused_without_the_key(
    settings: dict[str, object], said: str
) -> None:
    with raises("invalid_settings", match=said) as caught:
        configure(settings)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "start", ["http://[::1]:8080", "https://my_host.example/a/b~c", "http://h"]
)
@pytest.mark.parametrize("end", PROTOCOLS)
async def test_an_upstream_may_have_any_address(start: str, end: str) -> None:
    await Upstream(make_settings(decisions_upstream=start + end)).aclose()


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two keys", b"k\xc3\xb6y", b"\xff"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    url = "http://127.0.0.1:1/v1/systemone"
    settings = make_settings(decisions_upstream=url, decisions_upstream_key_file=file)

    with raises("invalid_settings", match="key_file"):
        Upstream(settings)
