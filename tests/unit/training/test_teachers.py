"""Laws of teachers: a task says what its logits say, and an upstream what its reply says."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.questions import ANGER, TEAM, URGENT
from doubles.refusals import raises
from doubles.serving import running_server
from doubles.tasks import publish_tiny_task
from nunatak_client import Client
from nunatak_client.transport import RetryPolicy
from nunatak_contract.enums import HeadKind, ProblemType, Reads
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, card_of
from nunatak_contract.upstreams import MAX_REPLY_BYTES
from nunatak_model import TextInput
from nunatak_registry import Registry
from nunatak_training import teachers
from nunatak_training.kinds import TaskKind
from nunatak_training.teachers import TeacherChoice, kept_answers

BACKBONE = tiny_backbone(num_layers=2)
TEXTS = ("please hurry", "no rush", "x")
URL = "https://upstream.example"
SECRET = "s3cret"  # noqa: S105 - not a secret
SAME_NAMES = {
    "type": "choice", "instructions": "Is it?", "options": [{"value": True}, {"value": "true"}],
}  # fmt: skip
NOUL = {"answers": {"q0": {"type": "noul", "noul": 0.75}}}
Reply = Callable[[httpx.Request], httpx.Response]


def said_by(
    registry: Registry, choice: TeacherChoice, reply: Reply, *texts: TextInput
) -> list[Mapping[str, float] | NunatakError]:
    teacher = choice.teacher(registry, BACKBONE, httpx.MockTransport(reply))
    assert teacher is not None
    return list(teacher.ask(texts or TEXTS[:1]))


def upstream(
    question: dict[str, Any] | str = URGENT,
    url: str = URL,
    **changes: Any,  # noqa: ANN401
) -> TeacherChoice:
    card = question if isinstance(question, str) else card_of(question)
    return TeacherChoice(upstream=url, question=card, **changes)


def always(content: object, status: int = 200, **headers: str) -> Reply:
    return lambda _: httpx.Response(status, json=content, headers=headers)


@pytest.mark.parametrize("problem_type", list(ProblemType), ids=str)
def test_a_task_teaches_the_scores_that_a_server_gives(
    registry: Registry, problem_type: ProblemType
) -> None:
    labels = ("value",) if problem_type is ProblemType.REGRESSION else ("a", "b", "c")
    publish_tiny_task(registry, BACKBONE, task="big", labels=labels, problem_type=problem_type)
    with running_server(BACKBONE, registry) as address, Client(address) as client:
        served = client.predict("big", list(TEXTS)).outputs

    teacher = TeacherChoice(task="big").teacher(registry, BACKBONE)

    assert teacher is not None
    assert (teacher.name, teacher.kind.problem_type) == ("big/1", problem_type)
    assert teacher.digest == registry.resolve("big").content
    for found, scores in zip(teacher.ask(TEXTS), cast("Any", served), strict=True):
        assert not isinstance(found, NunatakError)
        expected = {str(it.label): float(it.score) for it in scores}
        if teacher.kind is TaskKind.REGRESSION:
            assert [float(it) for it in found] == pytest.approx(list(expected.values()))
        else:
            assert dict(found) == pytest.approx(expected)


@pytest.mark.parametrize("reads", [None, *Reads])
def test_a_task_teaches_nothing_about_a_form_of_text_that_it_does_not_read(
    registry: Registry, reads: Reads | None
) -> None:
    publish_tiny_task(registry, BACKBONE, task="big", reads=reads)
    teacher = TeacherChoice(task="big").teacher(registry, BACKBONE)
    assert teacher is not None

    single, pair = (isinstance(it, NunatakError) for it in teacher.ask(["a", ("a", "b")]))

    assert (single, pair) == (reads is Reads.PAIR, reads is Reads.SINGLE)


def test_an_upstream_that_is_this_server_teaches_what_its_task_says(registry: Registry) -> None:
    publish_tiny_task(registry, BACKBONE, task="urgency", labels=("calm", "urgent"))
    card = QuestionCard.model_validate(
        {"name": "urgent", "task": "urgency", "question": URGENT,
         "labels": {"urgent": True, "calm": False}}
    )  # fmt: skip
    registry.questions.put(card)
    task = TeacherChoice(task="urgency").teacher(registry, BACKBONE)
    assert task is not None
    with running_server(BACKBONE, registry) as address:
        for path in ("", "/v1/systemone", "/v1/decisions"):
            found = upstream("urgent", f"{address}{path}").teacher(registry, BACKBONE)
            assert found is not None
            assert found.labels == ("calm", "urgent")
            assert found.digest == card.question.digest
            for said, own in zip(found.ask(TEXTS), task.ask(TEXTS), strict=True):
                assert not isinstance(said, NunatakError)
                assert not isinstance(own, NunatakError)
                assert dict(said) == pytest.approx(dict(own))


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (URGENT, {"type": "noul", "noul": 0.75}, {"no": 0.25, "yes": 0.75}),
        (
            TEAM,
            {"type": "choice", "choice": "tech", "probabilities": {"tech": 0.9, "bill": 0.1}},
            {"bill": 0.1, "tech": 0.9},
        ),
        (
            ANGER,
            {
                "type": "score", "score": 0.4,
                "legend": {"0": "Calm", "1": "Cross", "2": "Furious"},
                "probabilities": {"0": 0.6, "1": 0.4, "2": 0.0},
            },
            {"Calm": 0.6, "Cross": 0.4, "Furious": 0.0},
        ),
    ],
    ids=["noul", "choice", "score"],
)  # fmt: skip
def test_labels_are_those_that_a_card_of_the_question_reads(
    registry: Registry, question: dict[str, Any], answer: object, expected: dict[str, float]
) -> None:
    (found,) = said_by(registry, upstream(question), always({"answers": {"q0": answer}}))

    assert not isinstance(found, NunatakError)
    assert dict(found) == pytest.approx(expected)


def test_a_call_has_the_text_the_model_and_the_key_of_the_file_alone(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_API_KEY", "our-own")
    (key := tmp_path / "key").write_text(f"{SECRET}\n")
    calls = list[httpx.Request]()

    def reply(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(200, json=NOUL)

    said_by(registry, upstream(key=key, model="big-one"), reply)
    said_by(registry, upstream(), reply)

    body = json.loads(calls[0].content)
    assert (body["state"], body["model"]) == (TEXTS[0], "big-one")
    assert str(calls[0].url) == f"{URL}/v1/systemone"
    assert calls[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "authorization" not in calls[1].headers


def says(content: bytes | Iterator[bytes], **headers: str) -> Reply:
    return lambda _: httpx.Response(200, content=content, headers=headers)


def breaks(kind: type[httpx.RequestError]) -> Reply:
    def reply(request: httpx.Request) -> httpx.Response:
        raise kind("broken", request=request)

    return reply


WITHOUT_ANSWER: dict[str, tuple[Reply, str]] = {
    "broken": (breaks(httpx.ReadError), "no usable reply within 30 s (ReadError)"),
    "refused": (always("bad words", 422), "HTTP 422"),
    "failed": (always("", 500), "HTTP 500"),
    "another question": (always({"answers": {"q1": NOUL}}), "cannot be used"),
    "no probability": (
        always({"answers": {"q0": {"type": "noul", "noul": 1.5}}}),
        "cannot be used",
    ),
    "another shape": (always([]), "cannot be used"),
    "NaN": (says(b'{"answers": {"q0": {"type": "noul", "noul": NaN}}}'), "cannot be used"),
    "deep": (says(b"[" * 100_000), "cannot be used"),
    "endless": (says(b" " * (MAX_REPLY_BYTES + 1)), f"more than {MAX_REPLY_BYTES} bytes"),
    "compressed": (says(iter([b"x"]), **{"content-encoding": "gzip"}), "its reply is compressed"),
}


@pytest.mark.parametrize(("reply", "problem"), WITHOUT_ANSWER.values(), ids=WITHOUT_ANSWER)
def test_a_text_without_an_answer_is_told_and_the_others_are_asked(
    registry: Registry, reply: Reply, problem: str
) -> None:
    def fails_for_the_first(request: httpx.Request) -> httpx.Response:
        is_first = json.loads(request.content)["state"] == TEXTS[0]
        return reply(request) if is_first else httpx.Response(200, json=NOUL)

    first, second, pair = said_by(
        registry, upstream(), fails_for_the_first, *TEXTS[:2], (TEXTS[0], TEXTS[1])
    )

    assert problem in str(first)
    assert second == {"no": 0.25, "yes": 0.75}
    assert "the row has a pair" in str(pair)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_a_failure_of_all_texts_ends_the_asking_at_once(registry: Registry, status: int) -> None:
    calls = list[httpx.Request]()

    def reply(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(status, text="no\x1b[2J", headers={"location": "/v1/x"})

    texts = [f"text {number}" for number in range(500)]
    with raises("teacher_failed", match=f"systemone does not answer: HTTP {status}") as caught:
        said_by(registry, upstream(), reply, *texts)

    assert len(calls) == 1
    assert "\x1b" not in str(caught.value)


def test_a_run_that_stops_and_goes_on_asks_about_no_text_twice(
    registry: Registry, tmp_path: Path
) -> None:
    asked = list[str]()

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["state"])
        stops = len(asked) == len(TEXTS) - 1
        return httpx.Response(401) if stops else httpx.Response(200, json=NOUL)

    def ask() -> list[Mapping[str, float] | NunatakError]:
        choice = upstream()
        found = choice.teacher(registry, BACKBONE, httpx.MockTransport(reply))
        with kept_answers(choice, found, tmp_path) as teacher:
            assert teacher is not None
            return list(teacher.ask(TEXTS))

    with raises("teacher_failed"):
        ask()
    (kept,) = tmp_path.glob("checkpoints/*.answers.jsonl")
    # A power cut leaves zeros where a write was.
    kept.write_bytes(bytes(9) + kept.read_bytes() + b'\n\xff\n{"cut": {"no')
    number = len(asked)

    assert ask() == [{"no": 0.25, "yes": 0.75}] * len(TEXTS)
    assert TEXTS[0] not in asked[number:]
    assert not kept.exists()


def test_kept_answers_that_cannot_be_read_are_an_error_that_names_them(
    registry: Registry, tmp_path: Path
) -> None:
    choice = upstream()
    found = choice.teacher(registry, BACKBONE, httpx.MockTransport(always(NOUL)))

    with kept_answers(choice, found, tmp_path) as teacher:
        assert teacher is not None
        (lock,) = tmp_path.glob("checkpoints/*.lock")
        lock.with_suffix(".answers.jsonl").mkdir()
        with raises("cache_unusable", match="answers.jsonl"):
            list(teacher.ask(TEXTS))
        lock.with_suffix(".answers.jsonl").rmdir()


def test_of_two_runs_at_once_one_keeps_the_answers(registry: Registry, tmp_path: Path) -> None:
    choice = upstream()
    found = choice.teacher(registry, BACKBONE, httpx.MockTransport(always(NOUL)))

    with (
        kept_answers(choice, found, tmp_path) as first,
        kept_answers(choice, found, tmp_path) as second,
    ):
        assert first is not found
        assert second is found


def test_an_upstream_that_is_gone_ends_the_asking(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "RETRIES", RetryPolicy(base_delay_s=0))
    answered = iter([always(NOUL)])

    def reply(request: httpx.Request) -> httpx.Response:
        return next(answered, breaks(httpx.ConnectError))(request)

    with raises("connection_failed", match="cannot connect to https://upstream.example"):
        said_by(registry, upstream(), reply, *TEXTS)


def test_an_overloaded_upstream_is_asked_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "RETRIES", RetryPolicy(base_delay_s=0))
    replies = [always({}, 429, **{"retry-after": "0"}), always({}, 503, **{"retry-after": "0"})]

    def reply(request: httpx.Request) -> httpx.Response:
        return replies.pop(0)(request) if replies else httpx.Response(200, json=NOUL)

    (found,) = said_by(registry, upstream(), reply)

    assert not isinstance(found, NunatakError)
    assert not replies


def test_calls_are_bounded(registry: Registry) -> None:
    lock, state = threading.Lock(), {"now": 0, "most": 0}
    gate = threading.Barrier(teachers.CALLS)

    def reply(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["state"] == "first":
            return httpx.Response(200, json=NOUL)
        with lock:
            state["now"] += 1
            state["most"] = max(state["most"], state["now"])
        gate.wait(timeout=30)
        with lock:
            state["now"] -= 1
        return httpx.Response(200, json=NOUL)

    others = (f"text {it}" for it in range(4 * teachers.CALLS))
    said_by(registry, upstream(), reply, "first", *others)

    assert state["most"] == teachers.CALLS


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        (upstream(url=f"https://me:{SECRET}@host"), "no user, query or fragment"),
        (upstream(url=f"https://host/v1/systemone?key={SECRET}"), "no user, query or fragment"),
        (upstream(url="https://host/v1/chat"), "must end in /v1/systemone or /v1/decisions"),
        (upstream(url="ftp://host"), "server must be a URL"),
        (upstream({**URGENT, "criteria": {"true": "now"}}, f"{URL}/v1/decisions"), "cannot say"),
        (upstream(key=Path("/nowhere/key")), "cannot be read"),
        (upstream(key=Path("/dev/null")), "it is empty"),
        (upstream(key=Path(__file__)), "more than one word"),
        (upstream(SAME_NAMES, f"{URL}/v1/decisions"), "have one label"),
        (TeacherChoice(task="rank"), "is a ranking task"),
        (TeacherChoice(task="nothing"), "nothing"),
        (upstream("nothing"), "nothing"),
    ],
    ids=[
        "user", "query", "path", "scheme", "protocol", "no key", "empty key", "words",
        "same labels", "ranking", "no task",
        "no card",
    ],
)  # fmt: skip
def test_wrong_teachers_are_refused_before_a_call(
    registry: Registry, choice: TeacherChoice, problem: str
) -> None:
    publish_tiny_task(registry, BACKBONE, task="rank", kind=HeadKind.RANKING)

    with pytest.raises(NunatakError, match=problem) as caught:
        choice.teacher(registry, BACKBONE, httpx.MockTransport(always(NOUL)))

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"task": "big", "upstream": URL, "question": card_of(URGENT)},
        {"upstream": URL},
        {"question": "urgent"},
        {"task": "big", "question": "urgent"},
        {"task": "big", "model": "m"},
        {"key": Path("key")},
        {"backbone": "minilm"},
        {"upstream": URL, "question": "urgent", "backbone": "minilm"},
    ],
    ids=" and ".join,
)
def test_a_choice_of_a_teacher_is_whole(given: dict[str, object]) -> None:
    with raises("invalid_option", match="expected a task as the teacher"):
        TeacherChoice(**given)  # pyrefly: ignore[bad-argument-type]
