"""Texts of more tokens than a task reads at once: in windows, refused or cut, and never silently.

The oracle reads each window alone and combines the outputs in plain loops.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch

from doubles.compat import counted
from doubles.tasks import MAX_LENGTH, random_branch, tiny_task
from nunatak_contract.enums import FunctionToApply, HeadKind, OnLong, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Row, TextInput, forward
from nunatak_registry import Registry
from nunatak_server.outputs.outputs import apply_function
from nunatak_server.predict.types import BACKBONE

LONG = "ann met bob in oslo, and cy came. " * 9
OTHER = "nothing here is said twice but nothing. " * 9
PAIR = ("who came to oslo?", LONG)
SHORT = "ann met bob."
SOFTMAX, SIGMOID, NONE = FunctionToApply.SOFTMAX, FunctionToApply.SIGMOID, FunctionToApply.NONE
TOP_LAYER = TopK(num_layers=1)
Windows = list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """A kind of task, and its rule of combination in plain loops."""

    combined: Callable[[Windows], list[float]]
    labels: tuple[str, ...]
    method: Method = TOP_LAYER
    problem: ProblemType | None = ProblemType.SINGLE_LABEL
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
    default: str | None = None
    function: FunctionToApply = SOFTMAX


def of_strongest(default: int) -> Callable[[Windows], list[float]]:
    def combined(windows: Windows) -> list[float]:
        best, strongest = list[float](), -1.0
        for logits in windows:
            scores = apply_function(SOFTMAX, logits)
            for label, score in enumerate(scores):
                if label != default and score > strongest:
                    best, strongest = scores, score
        return best

    return combined


def mean_of(function: FunctionToApply) -> Callable[[Windows], list[float]]:
    def combined(windows: Windows) -> list[float]:
        totals = [0.0] * len(windows[0])
        for logits in windows:
            for label, score in enumerate(apply_function(function, logits)):
                totals[label] += score / len(windows)
        return totals

    return combined


def largest(windows: Windows) -> list[float]:
    found = [0.0] * len(windows[0])
    for logits in windows:
        for label, score in enumerate(apply_function(SIGMOID, logits)):
            found[label] = max(found[label], score)
    return found


TASKS = {
    "guard": Sort(labels=("benign", "attack"), default="benign", combined=of_strongest(0)),
    "three": Sort(
        labels=("x", "none", "y"),
        default="none",
        method=Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        combined=of_strongest(1),
    ),
    "topic": Sort(labels=("a", "b", "c"), combined=mean_of(SOFTMAX)),
    "tags": Sort(
        labels=("a", "b", "c"), problem=ProblemType.MULTI_LABEL, function=SIGMOID, combined=largest
    ),
    "stars": Sort(
        labels=("stars",),
        problem=ProblemType.REGRESSION,
        method=HeadOnly(),
        function=NONE,
        combined=mean_of(NONE),
    ),
}
RANKS = Sort(labels=(), kind=HeadKind.RANKING, problem=None, function=SIGMOID, combined=largest)
CHOICES = {"refusing": OnLong.REFUSE, "cutting": OnLong.CUT}


def publish(opened: Registry, backbone: Backbone) -> None:
    for name, sort in {**TASKS, "ranks": RANKS}.items():
        publish_sort(opened, backbone, name, sort)
    for name, on_long in CHOICES.items():
        publish_sort(opened, backbone, name, TASKS["guard"], on_long=on_long)


def publish_sort(
    registry: Registry, backbone: Backbone, name: str, sort: Sort, *, on_long: OnLong | None = None
) -> None:
    draft, blobs = tiny_task(
        backbone,
        task=name,
        method=sort.method,
        labels=sort.labels,
        kind=sort.kind,
        problem_type=sort.problem,
    )
    head = draft.head.model_copy(update={"default_label": sort.default})
    registry.publish(draft.model_copy(update={"head": head, "on_long": on_long}), blobs)


def alone(
    backbone: Backbone, sort: Sort, item: TextInput, *, windows: bool = True
) -> list[list[float]]:
    """The logits of each window, computed with nothing else in the batch."""
    num_labels = max(1, len(sort.labels))
    branch = random_branch(backbone, sort.method, num_labels=num_labels, kind=sort.kind)
    tokenizer = backbone.tokenizer
    read = (
        tokenizer.encode_windows([item], max_length=MAX_LENGTH, stride=MAX_LENGTH // 2)[0]
        if windows
        else tuple(tokenizer.encode([item], max_length=MAX_LENGTH))
    )
    found: list[list[float]] = []
    for encoding in read:
        with torch.inference_mode():
            (logits,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        found.append([float(logit) for logit in logits.flatten()])
    return found


def size_of(backbone: Backbone, item: TextInput) -> int:
    return backbone.tokenizer.encode([item], max_length=5000)[0].num_tokens


def wire(item: TextInput) -> Any:  # noqa: ANN401 - JSON
    return item if isinstance(item, str) else {"text": item[0], "text_pair": item[1]}


async def ask(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200
) -> httpx.Response:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer


def scores_of(output: list[dict[str, Any]], labels: tuple[str, ...]) -> list[float]:
    by_label = {it["label"]: it["score"] for it in output}
    return [by_label[label] for label in labels]


@pytest.mark.parametrize("name", TASKS)
async def test_a_long_text_is_answered_from_its_windows_each_read_alone(
    client: httpx.AsyncClient, backbone: Backbone, name: str
) -> None:
    sort = TASKS[name]

    items = [LONG, SHORT, OTHER, PAIR]
    body = {"inputs": [wire(it) for it in items]}
    answer = (await ask(client, f"/v1/tasks/{name}/predict", body)).json()

    for item, output in zip(items, answer["outputs"], strict=True):
        windows = alone(backbone, sort, item)
        assert (len(windows) > 3) == (item != SHORT)
        expected = sort.combined(windows)
        assert scores_of(output, sort.labels) == pytest.approx(expected, abs=1e-4)
    assert answer["tokens"] == [size_of(backbone, it) for it in items]
    assert answer["truncated"] == [False] * 4


async def test_tasks_of_one_length_share_the_trunk_rows_of_windows(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    names, new = ["guard", "topic", "tags"], LONG.replace("ann", "dan")
    await ask(client, "/v1/predict", {"inputs": SHORT, "tasks": names})
    before = await counted(client, "nunatak_shared_trunk_rows_total")
    await ask(client, "/v1/predict", {"inputs": new, "tasks": names})

    num_windows = len(alone(backbone, TASKS["guard"], new))
    assert await counted(client, "nunatak_shared_trunk_rows_total") - before == 2 * num_windows


@pytest.mark.parametrize("chosen_by", ["task", "request"])
async def test_a_cut_text_says_so_and_how_much_was_read(
    client: httpx.AsyncClient, backbone: Backbone, chosen_by: str
) -> None:
    sort = TASKS["guard"]
    body: dict[str, Any] = {"inputs": [LONG, SHORT]}
    if chosen_by == "request":
        body["parameters"] = {"on_long": "cut"}
    name = "cutting" if chosen_by == "task" else "guard"
    answer = await ask(client, f"/v1/tasks/{name}/predict", body)

    (logits,) = alone(backbone, sort, LONG, windows=False)
    scores = scores_of(answer.json()["outputs"][0], sort.labels)
    assert scores == pytest.approx(apply_function(SOFTMAX, logits), abs=1e-4)
    short = size_of(backbone, SHORT)
    assert answer.json()["tokens"] == [MAX_LENGTH, short]
    assert answer.json()["truncated"] == [True, False]
    assert answer.headers["x-truncated"] == "true"
    assert answer.headers["x-tokens-read"] == str(MAX_LENGTH + short)

    single = await ask(client, "/v1/tasks/guard/predict", {"inputs": LONG})
    assert (single.json()["tokens"], single.json()["truncated"]) == (size_of(backbone, LONG), False)
    assert single.headers["x-truncated"] == "false"


@pytest.mark.parametrize("chosen_by", ["task", "request"])
async def test_a_refused_text_says_how_long_it_is(
    client: httpx.AsyncClient, backbone: Backbone, chosen_by: str
) -> None:
    body: dict[str, Any] = {"inputs": [SHORT, LONG]}
    if chosen_by == "request":
        body["parameters"] = {"on_long": "refuse"}
    name = "refusing" if chosen_by == "task" else "guard"
    problem = (await ask(client, f"/v1/tasks/{name}/predict", body, 422)).json()

    assert problem["code"] == "too_many_tokens"
    for told in (
        "input 1",
        f"{size_of(backbone, LONG)} tokens",
        f"at most {MAX_LENGTH}",
        "on_long",
    ):
        assert told in problem["detail"]
    await ask(client, f"/v1/tasks/{name}/predict", {**body, "inputs": SHORT})
    overridden = {"inputs": LONG, "parameters": {"on_long": "windows"}}
    await ask(client, "/v1/tasks/refusing/predict", overridden)


async def test_a_task_that_refuses_a_text_fails_alone(client: httpx.AsyncClient) -> None:
    tasks = ["guard", "refusing", "cutting"]
    body = {"inputs": LONG, "tasks": tasks}
    results = (await ask(client, "/v1/predict", body)).json()["results"]
    assert [it.get("truncated") for it in results] == [False, None, True]
    assert results[1]["error"]["code"] == "too_many_tokens"

    lines = await client.post("/v1/predict", json=body, headers={"accept": "application/x-ndjson"})
    assert '"truncated":true' in lines.text
    assert '"code":"too_many_tokens"' in lines.text

    all_of_them = {**body, "parameters": {"on_long": "refuse"}}
    await ask(client, "/v1/predict", all_of_them, 422)


async def test_documents_are_cut_unless_windows_are_asked_for(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    documents = [LONG, SHORT, OTHER]
    query = {"query": "who came?", "documents": documents}

    for on_long, windowed in ((None, False), ("cut", False), ("windows", True)):
        body: dict[str, Any] = {"inputs": query}
        if on_long:
            body["parameters"] = {"on_long": on_long}
        answer = (await ask(client, "/v1/tasks/ranks/predict", body)).json()

        expected: list[float] = []
        for document in documents:
            pair = ("who came?", document)
            expected += largest(alone(backbone, RANKS, pair, windows=windowed))
        found = {it["index"]: it["score"] for it in answer["outputs"]}
        assert [found[place] for place in range(3)] == pytest.approx(expected, abs=1e-4)
        assert answer["truncated"] is not windowed
        sizes = [size_of(backbone, ("who came?", it)) for it in documents]
        read = sizes if windowed else [min(size, MAX_LENGTH) for size in sizes]
        assert answer["tokens"] == sum(read)
    refused = {"inputs": query, "parameters": {"on_long": "refuse"}}
    await ask(client, "/v1/tasks/ranks/predict", refused, 422)


async def test_long_inputs_are_counted_by_what_became_of_them(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    path = "/v1/tasks/guard/predict"
    name = 'nunatak_long_inputs_total{{on_long="{}",task="{}"}}'
    names = [name.format(on_long, "guard") for on_long in ("windows", "cut", "refuse")]
    names += [name.format(on_long, BACKBONE) for on_long in ("cut", "refuse")]
    before = [await counted(client, it) for it in names]

    await ask(client, path, {"inputs": [LONG, SHORT, OTHER]})
    await ask(client, path, {"inputs": LONG, "parameters": {"on_long": "cut"}})
    await ask(client, path, {"inputs": LONG, "parameters": {"on_long": "refuse"}}, 422)
    embed = {"inputs": "a " * backbone.config.max_tokens}
    await ask(client, "/tei/backbone/embed", {**embed, "truncate": True})
    await ask(client, "/tei/backbone/embed", embed, 422)

    after = [await counted(client, it) for it in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 1, 1, 1]


async def test_other_protocols_say_the_same(client: httpx.AsyncClient, backbone: Backbone) -> None:
    read, short = str(size_of(backbone, LONG)), size_of(backbone, SHORT)

    async def told(path: str, body: dict[str, Any]) -> tuple[str, str]:
        headers = (await ask(client, path, body)).headers
        return headers["x-tokens-read"], headers["x-truncated"]

    tei = "/tei/tasks/guard/predict"
    assert await told(tei, {"inputs": LONG, "truncate": True}) == (str(MAX_LENGTH), "true")
    assert await told(tei, {"inputs": SHORT}) == (str(short), "false")
    await ask(client, tei, {"inputs": LONG}, 422)

    rerank = {"query": "who?", "texts": [LONG], "truncate": True}
    assert await told("/tei/tasks/ranks/rerank", rerank) == (str(MAX_LENGTH), "true")

    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [LONG]}
    infer = "/v2/models/guard/infer"
    assert await told(infer, {"inputs": [tensor]}) == (read, "false")
    cut = {"inputs": [tensor], "parameters": {"on_long": "cut"}}
    assert await told(infer, cut) == (str(MAX_LENGTH), "true")

    most = backbone.config.max_tokens
    embed = {"inputs": "a " * most, "truncate": True}
    assert await told("/tei/backbone/embed", embed) == (str(most), "true")
    model = {"model": backbone.name, "input": SHORT}
    assert await told("/v1/embeddings", model) == (str(short), "false")
