"""KServe's protocol of version 1 answers like the native routes.

KServe's client is too large for a test. The requests and the reading of the answers are those of
NeMo Guardrails' `hf_classifier` (nemoguardrails/library/hf_classifier/backends.py, November 2026).
"""

import httpx

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, post


async def test_kserve_predicts_as_the_task_does(client: httpx.AsyncClient) -> None:
    rows = await native(client, "topic", [TEXT, OTHER])
    pair = {"text": TEXT, "text_pair": OTHER}
    (paired,) = await native(client, "topic", [pair])
    (value,) = await native(client, "stars", [TEXT])

    found = await post(client, "/v1/models/topic:predict", {"instances": [TEXT, OTHER]})
    both = await post(client, "/v1/models/topic:predict", {"instances": [pair]})
    stars = await post(client, "/v1/models/stars:predict", {"instances": [TEXT]})

    assert found.keys() == {"predictions"}
    for prediction, row in zip(found["predictions"], rows, strict=True):
        assert prediction == SCORE({it["label"]: it["score"] for it in row})
    assert both["predictions"] == [SCORE({it["label"]: it["score"] for it in paired})]
    assert stars["predictions"] == SCORE([value[0]["score"]])


async def test_kserve_answers_every_kind_of_head(client: httpx.AsyncClient) -> None:
    asked: dict[str, object] = {
        "names": TEXT,
        "answers": {"question": OTHER, "context": TEXT},
        "ranks": {"query": OTHER, "documents": DOCUMENTS},
    }
    for task, instance in asked.items():
        expected = await native(client, task, [instance])
        path = f"/v1/models/{task}:predict"
        assert (await post(client, path, {"instances": [instance]}))["predictions"] == expected
