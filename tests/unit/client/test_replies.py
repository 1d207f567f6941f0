"""Laws of reading replies: each kind of task has its own class of result."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import cast

import httpx
import pytest
from pydantic import JsonValue

from nunatak_client import (
    Answer,
    ApiError,
    AuthenticationError,
    Classification,
    Client,
    ConflictError,
    ConnectionFailedError,
    DeadlineExceededError,
    Entity,
    HeadKind,
    InvalidInputError,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    Prediction,
    ProblemType,
    RankedDocument,
    Score,
    TaskResult,
    Timings,
    UnavailableError,
    WrongHeadError,
)
from nunatak_client.replies import Reply, raise_for_problem, read_fan_out, read_prediction
from nunatak_client.transport import VerdictExchange
from nunatak_contract.enums import StreamEventKind
from nunatak_contract.wire import StreamEvent

REFUSAL = b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
URGENT: dict[str, JsonValue] = {"label": "urgent", "score": 0.9}
CALM: dict[str, JsonValue] = {"label": "calm", "score": 0.1}
LINE = (
    b'{"reference": "tone", "task": "tone", "version": 3,'
    b' "outputs": [{"label": "a", "score": 1}]}\n'
)


def reply(body: JsonValue, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status=status, headers=headers or {}, content=json.dumps(body).encode())


def prediction(outputs: JsonValue) -> dict[str, JsonValue]:
    return {"task": "tone", "version": 3, "outputs": outputs}


def client_of(*responses: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    left, requests = list(responses), list[httpx.Request]()

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    transport = httpx.MockTransport(handle)
    client = Client("http://tests.invalid", transport=transport, sleep=lambda _: None)
    return client, requests


def test_single_input_and_list_of_one_read_the_same() -> None:
    single = read_prediction(reply(prediction([URGENT, CALM])), num_inputs=None)
    listed = read_prediction(reply(prediction([[URGENT, CALM]])), num_inputs=1)

    assert single == listed
    assert single.best == Score(label="urgent", score=0.9)
    assert single.scores == single.outputs[0]
    assert single.labels == ("urgent",)


def test_headers_become_timings_and_request_id() -> None:
    headers = {
        "x-queue-ms": "1.5",
        "x-tokenize-ms": "0.2",
        "x-compute-ms": "7",
        "x-batch-size": "12",
        "x-request-id": "r1",
    }

    answer = read_prediction(reply(prediction([URGENT]), headers=headers), num_inputs=None)

    assert answer.timings == Timings(queue_ms=1.5, tokenize_ms=0.2, compute_ms=7, batch_size=12)
    assert answer.request_id == "r1"


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-1"])
def test_timing_header_that_is_no_duration_counts_as_absent(value: str) -> None:
    answer = read_prediction(
        reply(prediction([URGENT]), headers={"x-queue-ms": value}), num_inputs=None
    )

    assert answer.timings.queue_ms is None


@pytest.mark.parametrize(
    ("body", "num_inputs"),
    [
        (prediction([[URGENT]]), 2),
        ({**prediction([[URGENT], [CALM]]), "predicted": ["urgent"]}, 2),
        (prediction([[]]), 1),
        (prediction([]), None),
        ({**prediction([]), "head": "ranking"}, None),
        ({**prediction([URGENT]), "head": "translation"}, None),
        (prediction([{"name": "x"}]), None),
        ({"task": "tone"}, None),
        ([1], None),
        (b"<html>", None),
    ],
)
def test_answer_that_breaks_the_contract_is_an_error(
    body: JsonValue | bytes, num_inputs: int | None
) -> None:
    sent = Reply(status=200, headers={}, content=body) if isinstance(body, bytes) else reply(body)

    with pytest.raises(InvalidResponseError):
        read_prediction(sent, num_inputs=num_inputs)


@pytest.mark.parametrize(
    "results", [[], [{"reference": "b", **prediction([URGENT])}], [{"reference": "a"}], ["a"], None]
)
def test_fan_out_that_breaks_the_contract_is_an_error(results: JsonValue) -> None:
    with pytest.raises(InvalidResponseError):
        read_fan_out(reply({"results": results}), num_inputs=None, tasks=["a"])


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, InvalidRequestError),
        (401, AuthenticationError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (405, InvalidRequestError),
        (409, ConflictError),
        (413, InvalidRequestError),
        (415, InvalidRequestError),
        (422, InvalidRequestError),
        (429, OverloadedError),
        (500, ApiError),
        (503, UnavailableError),
        (504, DeadlineExceededError),
    ],
)
def test_each_status_has_its_error(status: int, expected: type[ApiError]) -> None:
    body: JsonValue = {"code": "the_code", "status": status, "detail": "why", "request_id": "r7"}

    with pytest.raises(ApiError) as caught:
        raise_for_problem(reply(body, status, {"retry-after": "2"}))

    assert type(caught.value) is expected
    assert caught.value.code == "the_code"
    assert caught.value.status == status
    assert caught.value.detail == "why"
    assert caught.value.request_id == "r7"
    assert caught.value.retry_after_s == 2


def test_field_problems_are_part_of_the_message() -> None:
    body: JsonValue = {
        "code": "invalid_request",
        "status": 422,
        "detail": "the body does not follow the schema",
        "errors": [{"location": "body.inputs", "message": "field required"}],
    }

    with pytest.raises(InvalidRequestError, match=r"body\.inputs: field required"):
        raise_for_problem(reply(body, 422))


@pytest.mark.parametrize(
    ("status", "release", "named"),
    [(422, "9.1.0", True), (404, "9.1.0", True), (422, version("nunatak"), False),
     (422, None, False), (409, "9.1.0", False)],
)  # fmt: skip
def test_a_refusal_by_another_release_names_both_releases(
    status: int, release: str | None, *, named: bool
) -> None:
    body: JsonValue = {"code": "invalid_request", "status": status, "detail": "what is `x`?"}
    headers = {} if release is None else {"x-nunatak-release": release}

    with pytest.raises(ApiError) as caught:
        raise_for_problem(reply(body, status, headers))

    told = f" (the server has release 9.1.0, and this client {version('nunatak')})"
    assert caught.value.detail == "what is `x`?" + told * named


def test_refusal_without_a_problem_body_is_still_typed() -> None:
    with pytest.raises(UnavailableError) as caught:
        raise_for_problem(Reply(status=503, headers={}, content=b"<html>bad gateway</html>"))

    assert caught.value.code == "http_error"


def test_date_in_retry_after_counts_as_absent() -> None:
    dated = Reply(status=503, headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, content=b"")

    assert dated.retry_after_s is None


def test_a_stream_that_ends_early_is_an_error_after_what_came() -> None:
    client, _ = client_of(httpx.Response(200, content=LINE))
    results = client.stream("hello", ["tone", "intent"])

    assert next(results).require().outputs
    with pytest.raises(InvalidResponseError, match="the stream ended"):
        next(results)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"results": []}\n'])
def test_a_line_that_is_no_result_is_an_error(line: bytes) -> None:
    client, _ = client_of(httpx.Response(200, content=line))

    with pytest.raises(InvalidResponseError):
        list(client.stream("hello", ["tone"]))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r"], ids=ascii)
@pytest.mark.parametrize("size", [1, 10_000])
def test_only_a_line_feed_ends_a_line(separator: str, size: int) -> None:
    text = f"one{separator}two"
    line = LINE.replace(b'"a"', json.dumps(text, ensure_ascii=ord(separator) < 32).encode())
    event = StreamEvent(event=StreamEventKind.TEXT, text=text).model_dump_json().encode()

    client, _ = client_of(httpx.Response(200, content=pieces(line, size)))
    (result,) = client.stream("hello", ["tone"])
    exchange = VerdictExchange(httpx.URL("http://tests.invalid"), {}, "guard")
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    events = [it for part in pieces(head + event + b"\n", size) for it in exchange.received(part)]

    assert result.require().outputs == ((Score(label=text, score=1),),)
    assert [it.text for it in events] == [text]


@pytest.mark.parametrize("kind", StreamEventKind)
def test_a_last_event_without_a_verdict_is_no_answer(kind: StreamEventKind) -> None:
    event = StreamEvent(event=kind, final=True).model_dump_json().encode()
    exchange = VerdictExchange(httpx.URL("http://tests.invalid"), {}, "guard")

    with pytest.raises(InvalidResponseError, match="no verdict"):
        list(exchange.received(b"HTTP/1.1 200 OK\r\n\r\n" + event + b"\n"))


@pytest.mark.parametrize("policy", ["", ".", ".."])
def test_a_policy_that_would_change_the_path_is_refused(policy: str) -> None:
    with pytest.raises(InvalidInputError):
        VerdictExchange(httpx.URL("http://tests.invalid"), {}, policy)


@pytest.mark.parametrize("chunk", [None, b"hello", 5])
def test_a_chunk_that_is_no_text_is_refused_before_sending(chunk: object) -> None:
    exchange = VerdictExchange(httpx.URL("http://tests.invalid"), {}, "guard")
    with pytest.raises(InvalidInputError, match="a chunk must be a text, got"):
        exchange.chunk(cast("str", chunk))


def test_a_refusal_is_read_after_the_server_has_closed() -> None:
    closed = threading.Event()

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.sendall(REFUSAL)
        # The bytes that nobody has read turn this end into a reset.
        connection.close()
        closed.set()

    def chunks() -> Iterator[str]:
        assert closed.wait(10)
        yield from ("one", "two", "three")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(refuse, listener)
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")

        with pytest.raises(AuthenticationError):
            list(client.judge_stream("guard", chunks()))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def test_a_stream_is_tried_again_only_before_it_has_begun() -> None:
    busy = httpx.Response(429, headers={"retry-after": "0"}, content=b"{}")
    client, requests = client_of(busy, httpx.Response(200, content=LINE))

    assert len(list(client.stream("hello", ["tone"], routing_key="user-1"))) == 1
    assert [request.headers["accept"] for request in requests] == ["application/x-ndjson"] * 2
    assert requests[1].headers["x-routing-key"] == "user-1"

    broken, asked = client_of(httpx.ReadError("reset"), httpx.Response(200, content=LINE))
    with pytest.raises(ConnectionFailedError):
        list(broken.stream("hello", ["tone"]))
    assert len(asked) == 1


PLACE: dict[str, JsonValue] = {"score": 0.9, "word": "ann", "start": 0, "end": 3}
OUTPUTS: dict[HeadKind, list[JsonValue]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: [{"label": "calm", "score": 0.9}],
    HeadKind.TOKEN_CLASSIFICATION: [
        {"entity": "B-PER", "index": 1, **PLACE},
        {"entity_group": "PER", **PLACE},
    ],
    HeadKind.QUESTION_ANSWERING: [{"answer": "ann", "score": 0.9, "start": 0, "end": 3}],
    HeadKind.RANKING: [{"index": 1, "score": 0.9, "document": "ann"}, {"index": 0, "score": 0.1}],
}


def read_body(num_inputs: int | None = None, **body: JsonValue) -> Prediction:
    return read_prediction(reply({"task": "t", "version": 1, **body}), num_inputs=num_inputs)


def read(head: HeadKind, outputs: JsonValue) -> Prediction:
    return read_body(head=head, outputs=outputs, predicted="calm")


def test_every_kind_reads_as_its_own_class() -> None:
    found = {head: read(head, outputs) for head, outputs in OUTPUTS.items()}

    assert all(prediction.head is head for head, prediction in found.items())
    assert found[HeadKind.SEQUENCE_CLASSIFICATION].best == Score(label="calm", score=0.9)
    token, group = found[HeadKind.TOKEN_CLASSIFICATION].entities
    assert token == Entity(label="B-PER", score=0.9, word="ann", start=0, end=3, index=1)
    assert (group.label, group.index) == ("PER", None)
    (answer,) = found[HeadKind.QUESTION_ANSWERING].answers
    assert answer == Answer(answer="ann", score=0.9, start=0, end=3)
    assert found[HeadKind.RANKING].ranking == (
        RankedDocument(index=1, score=0.9, document="ann"),
        RankedDocument(index=0, score=0.1),
    )


PARTS = ["best", "scores", "labels", "predicted", "entities", "answers", "ranking"]


@pytest.mark.parametrize("head", HeadKind)
@pytest.mark.parametrize("name", PARTS)
def test_what_a_kind_does_not_give_is_refused_by_name(head: HeadKind, name: str) -> None:
    owners = {
        "entities": HeadKind.TOKEN_CLASSIFICATION,
        "answers": HeadKind.QUESTION_ANSWERING,
        "ranking": HeadKind.RANKING,
    }
    owner = owners.get(name, HeadKind.SEQUENCE_CLASSIFICATION)
    prediction = read(head, OUTPUTS[head])

    if head is owner:
        assert getattr(prediction, name)
    else:
        with pytest.raises(WrongHeadError, match=owner) as caught:
            getattr(prediction, name)
        assert getattr(prediction, str(caught.value.fields["instead"]))


@pytest.mark.parametrize("name", PARTS)
def test_a_failed_result_raises_its_error_whatever_is_read(name: str) -> None:
    problem: JsonValue = {"code": "task_unhealthy", "status": 503, "detail": "t/1 is ill"}
    answered = reply({"results": [{"reference": "t", "error": problem}]})

    failed = read_fan_out(answered, num_inputs=2, tasks=["t"])["t"]

    assert isinstance(failed, TaskResult)
    assert (failed.task, failed.version, failed.outputs, failed.head_outputs) == (None,) * 4
    assert (failed.tokens, failed.truncated, failed.unread) == ((), (), ())
    assert not failed.is_truncated
    with pytest.raises(ApiError, match="t/1 is ill") as caught:
        getattr(failed, name)
    assert caught.value.code == "task_unhealthy"


def test_a_text_may_hold_no_entities_and_a_context_no_answers() -> None:
    assert read(HeadKind.TOKEN_CLASSIFICATION, []).entities == ()
    assert read(HeadKind.QUESTION_ANSWERING, []).answers == ()


@pytest.mark.parametrize(("num_inputs", "told"), [(None, (9, True)), (2, ([9, 3], [True, False]))])
def test_what_was_read_of_each_input_is_reported_per_input(
    num_inputs: int | None, told: tuple[JsonValue, JsonValue]
) -> None:
    outputs: JsonValue = [CALM] if num_inputs is None else [[CALM]] * num_inputs

    prediction = read_body(num_inputs, outputs=outputs, tokens=told[0], truncated=told[1])

    assert prediction.tokens == ((9,) if num_inputs is None else (9, 3))
    assert prediction.truncated == ((True,) if num_inputs is None else (True, False))
    assert prediction.is_truncated
    assert read_body(num_inputs, outputs=outputs).tokens == ()


PREDICTED: dict[ProblemType, tuple[JsonValue, object]] = {
    ProblemType.SINGLE_LABEL: ("calm", "calm"),
    ProblemType.MULTI_LABEL: (["urgent", "calm"], ("urgent", "calm")),
    ProblemType.REGRESSION: (4, 4.0),
}


@pytest.mark.parametrize("problem", ProblemType)
def test_what_is_predicted_has_one_entry_per_input_also_for_one(problem: ProblemType) -> None:
    sent, expected = PREDICTED[problem]
    labels = OUTPUTS[HeadKind.SEQUENCE_CLASSIFICATION]

    one = read_body(problem_type=problem, outputs=labels, predicted=sent)
    two = read_body(2, problem_type=problem, outputs=[labels] * 2, predicted=[sent] * 2)

    assert one.predicted == (expected,)
    assert two.predicted == (expected, expected)
    assert isinstance(one.head_outputs, Classification)
    assert one.head_outputs.problem_type is problem
