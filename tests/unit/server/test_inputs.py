import pytest

from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.inputs import Input, Query, Question
from nunatak_server.tokenization import find_misfit, texts_to_read

QUESTION = Question(question="who?", context="ann")
QUERY = Query(query="who?", documents=("ann", "bob"))
FITTING: dict[HeadKind, list[Input]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: ["ann", ("ann", "bob")],
    HeadKind.TOKEN_CLASSIFICATION: ["ann"],
    HeadKind.QUESTION_ANSWERING: [QUESTION],
    HeadKind.RANKING: [QUERY],
}
ALL: list[Input] = ["ann", ("ann", "bob"), QUESTION, QUERY]


@pytest.mark.parametrize("head", HeadKind)
def test_a_head_answers_its_own_kinds_of_input_and_no_other(head: HeadKind) -> None:
    assert find_misfit(FITTING[head], head, None) is None
    for item in ALL:
        error = find_misfit([*FITTING[head], item], head, None)
        assert (error is None) == (item in FITTING[head])
        if error is not None:
            assert error.fields["position"] == len(FITTING[head])
            assert error.fields["head"] == head.replace("_", " ")


@pytest.mark.parametrize(("reads", "item"), [(Reads.SINGLE, "ann"), (Reads.PAIR, ("ann", "bob"))])
def test_a_task_that_reads_one_form_of_text_refuses_the_other(reads: Reads, item: Input) -> None:
    head = HeadKind.SEQUENCE_CLASSIFICATION

    assert [it for it in ALL if find_misfit([it], head, reads) is None] == [item]


def test_a_query_is_read_once_for_each_document() -> None:
    assert texts_to_read(QUERY) == (("who?", "ann"), ("who?", "bob"))
    assert texts_to_read(QUESTION) == (("who?", "ann"),)
    assert texts_to_read("ann") == ("ann",)
