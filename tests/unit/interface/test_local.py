"""Laws of `nunatak.load`: the server's answers, from any thread and in a notebook."""

import asyncio
import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

import nunatak
import nunatak_client
from doubles.backbones import Family, save_tiny_backbone
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_server
from doubles.tasks import EVERY_METHOD, publish_tiny_task
from doubles.terminals import nunatak as terminal
from nunatak_client import InvalidInputError
from nunatak_client.calls import Inputs
from nunatak_contract.enums import HeadKind, OnFailure, PolicyMode, VerdictAction
from nunatak_contract.policies import Pattern
from nunatak_contract.requests import Input
from nunatak_contract.wire import PolicyVerdict, Score
from nunatak_model import load_backbone
from nunatak_registry import Registry
from nunatak_server.runtime import Runtime

Scores = TypeAdapter(tuple[Score, ...])
ALLOW, FLAG, MASK, BLOCK = VerdictAction
KINDS = {
    "tone": HeadKind.SEQUENCE_CLASSIFICATION,
    "names": HeadKind.TOKEN_CLASSIFICATION,
    "facts": HeadKind.QUESTION_ANSWERING,
    "search": HeadKind.RANKING,
}
RULES = [
    make_rule(name=action, action=action, patterns=(Pattern(pattern=pattern, label="PIN"),))
    for action, pattern in ((BLOCK, "bomb"), (MASK, r"\d{4}"))
]
TONE = make_rule(when("tone", "calm", threshold=1e-9), name="tone", action=FLAG)
LOST = make_rule(when("lost", "calm", threshold=0.5), name="lost")
POLICIES = (
    make_policy(*RULES, TONE),
    make_policy(TONE, name="hasty", deadline_ms=1),
    make_policy(*RULES, name="dry", mode=PolicyMode.DRY_RUN),
    make_policy(*RULES, LOST, name="closed"),
    make_policy(*RULES, LOST, name="open", on_failure=OnFailure.ALLOW),
)


@pytest.fixture(name="place", scope="module")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    with Registry.open(folder / "registry") as registry:
        for task, kind in KINDS.items():
            publish_tiny_task(registry, backbone, task=task, kind=kind)
        lost = publish_tiny_task(registry, backbone, task="lost", seed=9)
        for policy in POLICIES:
            registry.policies.put(policy)
    for file in (folder / "registry").rglob(f"*{lost.blobs[0].sha256}*"):
        file.unlink()
    return folder


@pytest.fixture(name="tasks", scope="module")
def open_tasks(place: Path) -> Iterator[nunatak.LocalTasks]:
    with nunatak.load(place / "registry", backbone=place / "backbone") as tasks:
        yield tasks


@pytest.fixture(name="address", scope="module")
def serve(place: Path) -> Iterator[str]:
    backbone = load_backbone(place / "backbone")
    with (
        Registry.open(place / "registry") as registry,
        running_server(backbone, registry) as address,
    ):
        yield address


def run(program: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_every_kind_of_task_answers_as_a_server_answers_its_client(
    address: str, tasks: nunatak.LocalTasks
) -> None:
    asked: dict[str, object] = {
        "tone": ["hello", "good bye"],
        "names": "ada met grace",
        "facts": nunatak.Question(question="where?", context="here in oslo"),
        "search": nunatak.Query(query="how high?", documents=["8,849 m", "far"]),
    }
    with nunatak.Client(address) as client:
        for task, inputs in asked.items():
            mine = tasks.predict(task, inputs, top_k=1)  # pyrefly: ignore[bad-argument-type]
            theirs = client.predict(task, inputs, top_k=1)  # pyrefly: ignore[bad-argument-type]

            assert type(mine.require()) is type(theirs.require())
            assert mine.model_dump(include={"task", "version", "tokens", "truncated"}) == (
                theirs.model_dump(include={"task", "version", "tokens", "truncated"})
            )
            assert str(mine.outputs)[:40] == str(theirs.outputs)[:40]


@pytest.mark.parametrize(
    ("policy", "texts", "decided", "status"),
    [
        ("guard", ["hello"], FLAG, 0),
        ("guard", ["hello", "it is 1234"], MASK, 4),
        ("guard", ["it is 1234", "a bomb"], BLOCK, 3),
        ("dry", ["a bomb"], BLOCK, 0),
        ("closed", ["hello"], BLOCK, 3),
        ("open", ["hello"], ALLOW, 0),
    ],
)
def test_a_policy_decides_in_this_process_and_in_a_command_as_on_a_server(
    policy: str,
    texts: list[str],
    decided: VerdictAction,
    status: int,
    place: Path,
    address: str,
    tasks: nunatak.LocalTasks,
) -> None:
    def told(verdict: PolicyVerdict) -> dict[str, object]:
        fields = verdict.model_dump(mode="json")
        for it in fields["rules"]:
            it["score"] = pytest.approx(it["score"], abs=1e-5)
        for it in fields["failures"]:
            it["error"]["request_id"] = None
        return fields

    messages = [{"role": "user", "content": it} for it in texts]
    with nunatak.Client(address) as client:
        expected = told(client.judge(policy, texts, deadline_s=60))
        of_call = told(client.judge(policy, messages=messages, deadline_s=60))
    found = tasks.judge(policy, texts)
    assert found.decided is decided
    assert told(tasks.judge(policy, messages=messages)) == of_call
    assert of_call["decided"] == decided
    assert told(found) == expected
    here = ("--registry", str(place / "registry"), "--backbone", str(place / "backbone"))
    for at in (here, ("--server", address)):
        ran = terminal("judge", policy, *texts[:-1], "-", *at, "--json", typed=texts[-1])
        assert ran.exit_code == status
        assert told(PolicyVerdict.model_validate_json(ran.stdout)) == expected
        printed = terminal("judge", policy, *texts, *at)
        assert (printed.exit_code, printed.stdout.split()[0].rstrip(":")) == (status, found.action)
        assert [it for it in found.texts or () if it not in printed.stdout] == []


@pytest.mark.parametrize(
    ("policy", "texts", "code"),
    [
        ("gone", ["a"], "policy_not_found"),
        ("guard", ["a", " "], "empty_text"),
        ("guard", ["a" * 40_000], "text_too_long"),
        ("guard", ["a"] * 65, "too_many_inputs"),
    ],
)
def test_texts_without_a_verdict_are_an_error(
    policy: str, texts: list[str], code: str, place: Path, address: str, tasks: nunatak.LocalTasks
) -> None:
    with pytest.raises(nunatak.NunatakError) as caught:
        tasks.judge(policy, texts)
    assert caught.value.code == code
    here = ("--registry", str(place / "registry"), "--backbone", str(place / "backbone"))
    for at in (here, ("--server", address)):
        terminal("judge", policy, *texts, *at).assert_refused(code)


def test_tasks_of_several_backbones_answer_as_on_each_alone(
    place: Path, tasks: nunatak.LocalTasks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, other = place / "backbone", save_tiny_backbone(tmp_path / "other", seed=3)
    with Registry.open(place / "registry") as registry:
        publish_tiny_task(registry, load_backbone(other), task="mood")

    with nunatak.load(place / "registry", backbone=[mine, other]) as both:
        found = both.predict_many("hello", ["tone", "mood"])

    assert found["tone"].outputs == tasks.predict("tone", "hello").outputs
    with nunatak.load(place / "registry", backbone=other) as alone:
        assert found["mood"].outputs == alone.predict("mood", "hello").outputs
    assert "no task answers here" not in caplog.text
    third = save_tiny_backbone(tmp_path / "third", seed=4)
    nunatak.load(place / "registry", backbone=third).close()
    assert "no task answers here" in caplog.text


def test_any_number_of_texts_is_answered_in_order(tasks: nunatak.LocalTasks) -> None:
    texts = [f"text number {number}" for number in range(150)]

    answer = tasks.predict("tone", texts)
    again = tasks.predict("tone", (it for it in texts))  # pyrefly: ignore[bad-argument-type]
    assert len(answer.outputs) == len(answer.predicted) == len(again.tokens) == 150
    for place in (0, 63, 64, 149):
        alone = tasks.predict("tone", texts[place]).best
        for found in (answer, again):
            scores = {it.label: it.score for it in Scores.validate_python(found.outputs[place])}
            assert scores[alone.label] == pytest.approx(alone.score, abs=1e-5)


def test_tasks_answer_inside_a_running_event_loop(tasks: nunatak.LocalTasks, place: Path) -> None:
    async def cell() -> tuple[str, str]:
        with nunatak.load(place / "registry", backbone=place / "backbone") as opened:
            return opened.predict("tone", "hello").best.label, tasks.predict(
                "tone", "hello"
            ).best.label

    first, second = asyncio.run(cell())

    assert first == second


def test_threads_may_share_the_tasks(tasks: nunatak.LocalTasks) -> None:
    texts = [f"text {number}" for number in range(16)]
    expected = [tasks.predict("tone", text).labels for text in texts]

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(tasks.predict, "tone", text) for text in texts]
        assert [it.result().labels for it in asked] == expected


def test_no_deadline_of_a_server_ends_a_prediction_in_this_process(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_DEFAULT_DEADLINE_MS", "1")

    with nunatak.load(place / "registry", backbone=place / "backbone") as tasks:
        assert not tasks.judge("hasty", ["text " * 200] * 4).failures
        assert len(tasks.predict("tone", ["text " * 200] * 4).labels) == 4


@pytest.mark.parametrize("family", ["deberta-v2", "llama"])
def test_settings_of_torch_in_a_program_change_no_answer(family: Family, tmp_path: Path) -> None:
    backbone = load_backbone(save_tiny_backbone(tmp_path / "backbone", family=family))
    with Registry.open(tmp_path / "registry") as registry:
        for number, method in enumerate(EVERY_METHOD):
            publish_tiny_task(registry, backbone, task=f"task-{number}", method=method)
    asked = [f"task-{number}" for number, _ in enumerate(EVERY_METHOD)]

    def scores(setting: Callable[[], object]) -> list[float]:
        try:
            setting()
            with nunatak.load(tmp_path / "registry", backbone=tmp_path / "backbone") as tasks:
                found = tasks.predict_many("where is it? " * 9, asked)
                return [found[it].best.score for it in asked]
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)

    expected = pytest.approx(scores(lambda: None), abs=1e-5)
    assert scores(lambda: torch.set_default_dtype(torch.bfloat16)) == expected
    assert scores(lambda: torch.set_default_dtype(torch.float64)) == expected
    assert scores(lambda: torch.set_default_device("meta")) == expected


def test_closing_ends_the_threads_and_may_be_repeated(place: Path) -> None:
    before = set(threading.enumerate())
    tasks = nunatak.load(place / "registry", backbone=place / "backbone")
    tasks.predict("tone", "hello")

    tasks.close()
    tasks.close()

    with pytest.raises(InvalidInputError, match="are closed, by close or"):
        tasks.predict("tone", "hello")
    assert {it for it in set(threading.enumerate()) - before if "nunatak" in it.name} == set()


def test_tasks_that_nobody_holds_end_their_threads_and_leave_the_memory(place: Path) -> None:
    def num_runtimes() -> int:
        gc.collect()
        return sum(isinstance(it, Runtime) for it in gc.get_objects())

    num_before, before = num_runtimes(), set(threading.enumerate())
    tasks = nunatak.load(place / "registry", backbone=place / "backbone")
    tasks.predict("tone", "hello")
    assert num_runtimes() == num_before + 1

    del tasks
    gc.collect()
    # A thread that is being started is listed, and nobody can join it yet.
    given_up = time.monotonic() + 20
    while not (has_ended := set(threading.enumerate()) <= before) and time.monotonic() < given_up:
        time.sleep(0.01)

    assert has_ended
    assert num_runtimes() == num_before


def test_a_thread_that_predicts_after_the_main_thread_gets_a_reason(place: Path) -> None:
    printed = run(
        "import threading, time\nimport nunatak\n"
        "def ask():\n"
        "    try:\n"
        f"        with nunatak.load({str(place / 'registry')!r},"
        f" backbone={str(place / 'backbone')!r}) as tasks:\n"
        "            begun.set()\n"
        "            tasks.predict('tone', ['hello'] * 100_000)\n"
        "    except nunatak.NunatakError as error:\n        print(error)\n"
        "begun = threading.Event()\n"
        "threading.Thread(target=ask).start()\n"
        "begun.wait()\n"
    )

    assert "the end of the main thread" in printed


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_tasks_that_are_copied_say_why_they_cannot_be(
    tasks: nunatak.LocalTasks, copied: Callable[[object], object]
) -> None:
    with pytest.raises(InvalidInputError, match=r"call nunatak\.load in each process"):
        copied(tasks)


def test_tasks_from_before_a_fork_are_refused_after_it(tasks: nunatak.LocalTasks) -> None:
    expected = tasks.predict("tone", "hello")

    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        refusal = ""
        try:
            with tasks:
                tasks.predict("tone", "hello")
        except InvalidInputError as error:
            refusal = str(error)
        os._exit(0 if "call nunatak.load after the fork" in refusal else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tasks.predict("tone", "hello") == expected


@pytest.mark.parametrize(
    ("task", "inputs", "options", "problem"),
    [
        ("gone", "hello", {}, "no task 'gone'"),
        ("tone/9", "hello", {}, "has no version 9"),
        ("facts", "hello", {}, "question"),
        ("tone", ["hello"] * 70 + [" "], {}, "^input 70: the text is empty"),
        ("tone", "hello", {"top_k": 0}, "top_k: "),
        ("tone", "hello", {"function_to_apply": "max"}, "function_to_apply: "),
    ],
)
def test_what_cannot_be_answered_is_an_error_with_its_reason(
    tasks: nunatak.LocalTasks, task: str, inputs: Inputs, options: dict[str, int], problem: str
) -> None:
    with pytest.raises(nunatak.NunatakError, match=problem) as caught:
        tasks.predict(task, inputs, **options)  # pyrefly: ignore[bad-argument-type]

    assert "--" not in str(caught.value)


def test_several_tasks_answer_as_each_alone_and_a_failure_is_of_its_task(
    tasks: nunatak.LocalTasks, address: str
) -> None:
    texts = [f"text number {number}" for number in range(70)]

    found = tasks.predict_many(texts, ["tone", "gone", "names"])

    assert [it.reference for it in found.results] == ["tone", "gone", "names"]
    for task in ("tone", "names"):
        alone = tasks.predict(task, texts)
        assert found[task].outputs == alone.outputs
        assert found[task].version == alone.version
    problem = found["gone"].error
    with nunatak.Client(address) as client:
        theirs = client.predict_many(texts[0], ["tone", "gone"])["gone"].error
    assert theirs is not None
    assert problem == theirs.model_copy(update={"request_id": None})


def test_the_place_of_a_refused_input_is_among_all_inputs(tasks: nunatak.LocalTasks) -> None:
    inputs: list[Input] = [*["hello"] * 70, ("hello", "you")]

    problem = tasks.predict_many(inputs, ["tone", "names"])["names"].error

    assert problem is not None
    assert problem.position == 70
    assert problem.detail.startswith("input 70: ")


def test_an_input_that_one_task_refuses_costs_no_other_input_an_answer(
    place: Path, address: str, tmp_path: Path
) -> None:
    rows = [{"text": f"text {number}"} for number in range(70)]
    for number in (3, 4, 66):
        rows[number]["text_pair"] = "you"
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = ["predict", "--file", str(tmp_path / "x.jsonl"), "--task", "tone", "--task", "names"]
    here = ("--registry", str(place / "registry"), "--backbone", str(place / "backbone"))

    for at in (here, ("--server", address)):
        ran = terminal(*asked, *at)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        assert [line["place"] for line in lines] == [f"x.jsonl:{it + 1}" for it in range(70)]
        assert all("outputs" in line["results"][0] for line in lines)
        refused = [line["results"][1].get("error") for line in lines]
        assert [at for at, it in enumerate(refused) if it] == [3, 4, 66]
        assert all(it["detail"].startswith("the input is a pair") for it in refused if it)


@pytest.mark.parametrize("inputs", [[], 3, ["a", 3], "\ud800", {"text": "a"}, {"a"}])
def test_inputs_are_refused_as_by_the_client(tasks: nunatak.LocalTasks, inputs: object) -> None:
    for ask in (tasks.predict, tasks.judge):
        with pytest.raises(nunatak.NunatakError, match=r"expected|must") as caught:
            ask("guard", inputs)  # pyrefly: ignore[bad-argument-type]
        assert caught.value.code in {"invalid_input", "invalid_request"}


def test_a_mistyped_registry_is_refused(place: Path) -> None:
    with pytest.raises(nunatak.NunatakError, match="no registry at") as caught:
        nunatak.load(place / "gone", backbone=place / "backbone")

    assert "--registry" not in str(caught.value)


def test_no_backbone_at_all_is_refused(place: Path) -> None:
    with pytest.raises(nunatak.NunatakError, match="got an empty list"):
        nunatak.load(place / "registry", backbone=[])


def test_a_device_that_is_not_there_is_refused(place: Path) -> None:
    with pytest.raises(nunatak.NunatakError, match=r"device must be .* got .gpu."):
        nunatak.load(place / "registry", backbone=place / "backbone", device="gpu")


def test_the_import_brings_the_client() -> None:
    assert nunatak.Client is nunatak_client.Client
    assert nunatak.AsyncClient is nunatak_client.AsyncClient
    assert nunatak.__version__ == version("nunatak")


EXTRAS = {"train('tone', [], [])": "training", "doubts([], [])": "training", "load()": "server"}


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """What each call says in a process without torch."""
    printed = run(
        "import sys\nsys.modules['torch'] = None\nimport nunatak\n"
        f"for call in {[*EXTRAS]}:\n"
        "    try:\n        eval('nunatak.' + call)\n"
        "    except nunatak.NunatakError as error:\n        print(error.code, error)"
    )
    return dict(zip(EXTRAS, printed.splitlines(), strict=True))


@pytest.mark.parametrize("call", EXTRAS)
def test_a_missing_extra_is_named(call: str, refusals: dict[str, str]) -> None:
    assert refusals[call].startswith("missing_extra")
    assert f"pip install 'nunatak[{EXTRAS[call]}]'" in refusals[call]
