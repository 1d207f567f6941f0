"""The hub's own InferenceClient, with a task's URL as its model."""

from typing import Any, cast

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, outputs, post


def client_of(address: str, path: str) -> InferenceClient:
    return InferenceClient(model=f"{address}/hf/{path}")


def test_the_hubs_client_classifies(address: str) -> None:
    expected = outputs(address, "topic", TEXT)
    first = outputs(address, "topic/1", TEXT, top_k=1, function_to_apply="none")

    found = client_of(address, "tasks/topic").text_classification(TEXT)
    pinned = client_of(address, "tasks/topic/1").text_classification(
        TEXT, top_k=1, function_to_apply="none"
    )

    assert [it.label for it in found] == [it["label"] for it in expected]
    assert [it.score for it in found] == SCORE([it["score"] for it in expected])
    assert [it.score for it in pinned] == SCORE([it["score"] for it in first])


def test_the_hubs_client_finds_entities(address: str) -> None:
    expected = outputs(address, "spans", TEXT, aggregation_strategy="simple")
    tokens = outputs(address, "spans", TEXT)

    client = client_of(address, "tasks/spans")
    found = client.token_classification(TEXT)
    single = client.token_classification(TEXT, aggregation_strategy=cast("Any", "none"))

    assert found
    assert [(it.entity_group, it.start, it.end) for it in found] == [
        (it["entity_group"], it["start"], it["end"]) for it in expected
    ]
    assert [it.entity for it in single] == [it["entity"] for it in tokens]


def test_the_hubs_client_answers_questions(address: str) -> None:
    question = {"question": OTHER, "context": TEXT}
    (best,) = outputs(address, "answers", question, max_answer_len=3)
    ranked = outputs(address, "answers", question, top_k=2)

    client = client_of(address, "tasks/answers")
    found = cast("Any", client.question_answering(OTHER, TEXT, max_answer_len=3))
    several = cast("Any", client.question_answering(OTHER, TEXT, top_k=2))

    assert (found.answer, found.start, found.end) == (best["answer"], best["start"], best["end"])
    assert found.score == SCORE(best["score"])
    assert [it.answer for it in several] == [it["answer"] for it in ranked]


def test_the_hubs_client_compares_sentences(address: str) -> None:
    body = {"inputs": [TEXT, *DOCUMENTS]}
    source, *others = httpx.post(f"{address}/tei/backbone/embed", json=body).json()
    expected = [sum(a * b for a, b in zip(source, one, strict=True)) for one in others]

    found = client_of(address, "backbone").sentence_similarity(TEXT, DOCUMENTS)

    assert found == SCORE(expected)


def test_the_hubs_client_raises_our_errors(address: str) -> None:
    with pytest.raises(HfHubHTTPError, match="no task 'nobody'"):
        client_of(address, "tasks/nobody").text_classification(TEXT)
    with pytest.raises(HfHubHTTPError, match="max_seq_len"):
        client_of(address, "tasks/answers").question_answering(OTHER, TEXT, max_seq_len=9)


async def test_a_list_of_inputs_gets_a_list_of_answers(client: httpx.AsyncClient) -> None:
    questions = [{"question": OTHER, "context": TEXT}, {"question": TEXT, "context": OTHER}]
    rows = await native(client, "topic", [TEXT, OTHER])
    pair = await native(client, "topic", {"text": TEXT, "text_pair": OTHER})
    answers = await native(client, "answers", questions)

    async def ask(task: str, inputs: object) -> Any:  # noqa: ANN401 - JSON
        return await post(client, f"/hf/tasks/{task}", {"inputs": inputs})

    assert await ask("topic", [TEXT, OTHER]) == rows
    assert await ask("topic", {"text": TEXT, "text_pair": OTHER}) == [pair]
    assert await ask("answers", questions) == [row[0] for row in answers]
    assert await ask("names", [TEXT, OTHER]) == await native(
        client, "names", [TEXT, OTHER], aggregation_strategy="simple"
    )
