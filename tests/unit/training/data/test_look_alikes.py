"""Laws of labels that look alike: people meant one label."""

import pytest

from nunatak_training.data import (
    DataProblem,
    Example,
    ExampleSet,
    TaskData,
    data_warnings,
    load_task_data,
)
from nunatak_training.data.bad_rows import look_alikes, spelt_out

DECOMPOSED = "Re\u0301clamation"


@pytest.mark.parametrize(
    ("rare", "common"),
    [
        ("Refund", "refund"),
        ("refund ", "refund"),
        ("request_refund", "request refund"),
        ("request-refund", "request_refund"),
        (DECOMPOSED, "Réclamation"),
        ("late\u200b", "late"),
        ("\ufefflate", "late"),
        ("la\u00adte", "late"),
        ("\uff4cate", "late"),
        ("l\u0430te", "late"),
        ("true", "1"),
        ("False", "0"),
        ("1.0", "true"),
    ],
)
def test_labels_that_differ_in_what_nobody_sees_look_alike(rare: str, common: str) -> None:
    assert look_alikes({rare: 4, common: 5}) == [(rare, common)]


@pytest.mark.parametrize("typo", ["refnud", "refun", "refundd", "refumd", "REFUMD"])
def test_a_rare_label_one_letter_from_a_frequent_one_looks_alike(typo: str) -> None:
    counts = {typo: 2, "refund": 30, "late fee": 20}

    assert [rare for rare, _ in look_alikes(counts)] == [typo]
    assert look_alikes({**counts, typo: 29}) == []


@pytest.mark.parametrize(
    "labels",
    [
        ("type1", "type2"),
        ("A", "A-"),
        ("1", "-1"),
        ("cat", "car"),
        ("refund", "reward"),
        ("C", "C++"),
        ("0", "1"),
        ("true", "0"),
    ],
)
def test_labels_with_a_meaning_of_their_own_do_not(labels: tuple[str, str]) -> None:
    assert look_alikes({labels[0]: 100, labels[1]: 1}) == []


def test_booleans_and_numbers_in_one_column_look_alike() -> None:
    labels = (1, "1", True, 1.0, 0, False)
    rows = [{"text": f"{it} {la}", "label": la} for it in range(20) for la in labels]

    found = data_warnings(load_task_data(rows), max_length=8)

    (pairs,) = [it.found for it in found if it.problem is DataProblem.LOOK_ALIKE]
    assert pairs.startswith("2 pairs: ")
    assert "'true'" in pairs
    assert "'false'" in pairs


def test_a_warning_names_the_pairs_with_their_counts() -> None:
    rows = [("late", 9), ("late\u200b", 3), ("broken", 9)]
    train = tuple(Example(text=f"{la} {it}", label=la) for la, n in rows for it in range(n))
    dev = ExampleSet(examples=(Example(text="q", label="late"),))
    data = TaskData(name="toy", train=ExampleSet(examples=train), dev=dev, labels=("late",))

    (found,) = data_warnings(data, max_length=8)

    assert found.problem is DataProblem.LOOK_ALIKE
    assert found.found == r"1 pair: 'late\u200b' (3) and 'late' (9)"


def test_labels_that_look_the_same_are_spelt_out_and_others_stay_readable() -> None:
    assert spelt_out(DECOMPOSED, "Réclamation") == (r"'Re\u0301clamation'", r"'R\xe9clamation'")
    assert spelt_out("l\u0430te", "late") == (r"'l\u0430te'", "'late'")
    assert spelt_out("défault", "défaut") == ("'défault'", "'défaut'")
