import pytest

from nunatak_contract.enums import FunctionToApply
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.scores import rank_documents

DOCUMENTS = ("first", "second", "third")


def test_the_document_of_the_largest_logit_comes_first() -> None:
    ranked = rank_documents([0.0, 3.0, -1.0], DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == [1, 0, 2]
    assert [item["score"] for item in ranked] == pytest.approx([0.952574, 0.5, 0.268941], abs=1e-6)
    assert all("document" not in item for item in ranked)


def test_documents_are_repeated_only_if_asked_for() -> None:
    options = Parameters(return_documents=True, top_k=2)

    ranked = rank_documents([0.0, 3.0, -1.0], DOCUMENTS, options=options)

    assert [item.get("document") for item in ranked] == ["second", "first"]


def test_softmax_is_over_the_documents_of_the_query() -> None:
    options = Parameters(function_to_apply=FunctionToApply.SOFTMAX)

    ranked = rank_documents([1.0, 2.0, 3.0], DOCUMENTS, options=options)

    assert sum(item["score"] for item in ranked) == pytest.approx(1)


def test_equal_documents_keep_the_order_of_the_query() -> None:
    ranked = rank_documents([1.0, 1.0, 1.0], DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == [0, 1, 2]


def test_scores_that_round_to_one_keep_the_order_of_their_logits() -> None:
    ranked = rank_documents([50.0, 60.0, 70.0], DOCUMENTS, options=Parameters())

    assert [item["index"] for item in ranked] == [2, 1, 0]
