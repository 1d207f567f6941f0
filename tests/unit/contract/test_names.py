from typing import cast

import pytest
from pydantic import TypeAdapter, ValidationError

from doubles.names import HOSTILE_NAMES
from nunatak_contract.errors import InvalidNameError
from nunatak_contract.names import (
    MAX_VERSION,
    TaskName,
    TaskReference,
    check_alias_name,
    check_task_name,
    check_version,
)

GOOD_NAMES = ("a", "0", "intent", "a.b", "a-b_c", "v1.2.3", "a" * 64, "a--")
BAD_NUMBERS = ("0", "01", "-1", "+1", "1.0", "1e3", "0x1", "1_0", "\u0661", "\u00b2", "x")
TASK_NAME = TypeAdapter(TaskName)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_name_is_returned_as_it_is(name: str) -> None:
    assert check_task_name(name) == name
    assert check_alias_name(name) == name


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name[:20]))
def test_hostile_name_is_refused_everywhere(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_task_name(name)
    with pytest.raises(InvalidNameError):
        check_alias_name(name)
    with pytest.raises(ValidationError):
        TASK_NAME.validate_python(name)
    with pytest.raises(InvalidNameError):
        TaskReference.parse(f"{name}@prod")
    with pytest.raises(InvalidNameError):
        TaskReference.parse(f"task@{name}")
    with pytest.raises(InvalidNameError):
        TaskReference.parse(f"task/{name}")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("intent", TaskReference(task="intent")),
        ("intent@prod", TaskReference(task="intent", alias="prod")),
        ("intent/3", TaskReference(task="intent", version=3)),
        (f"intent/{MAX_VERSION}", TaskReference(task="intent", version=MAX_VERSION)),
    ],
)
def test_reference_reads_back_what_it_prints(text: str, reference: TaskReference) -> None:
    assert TaskReference.parse(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text", ["intent@", "intent/", "@prod", "/3", "a@b@c", "a/1/2", "a@b/1", "a/1@b", "intent/3\n"]
)
def test_reference_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        TaskReference.parse(text)


@pytest.mark.parametrize("text", [["intent", "tone"], None, 5])
def test_reference_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidNameError, match="must be one name"):
        TaskReference.parse(cast("str", text))


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", *BAD_NUMBERS, str(MAX_VERSION + 1), "9" * 5000],
    ids=lambda text: ascii(text[:12]),
)
def test_version_is_a_plain_positive_integer(text: str) -> None:
    with pytest.raises(InvalidNameError):
        check_version(text)


@pytest.mark.parametrize(
    ("text", "task"),
    [("tone", "tone"), ("tone@prod", "tone"), ("tone/3", "tone"), ("A b/3@x", "A b"), ("@", "")],
)
def test_the_place_of_the_task_is_found_in_any_text(text: str, task: str) -> None:
    assert TaskReference.task_in(text) == task
