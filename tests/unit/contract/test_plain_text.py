import json
import sys

from hypothesis import given
from hypothesis import strategies as st

from doubles.hostile_texts import HOSTILE, MARKUP, is_obeyed, obeyed
from nunatak_contract.plain_text import counted, percent, visible, visible_json, visible_lines

READABLE = "Füße 12\N{NO-BREAK SPACE}€, שלום, 東京\N{IDEOGRAPHIC SPACE}都, 👩\u200d💻, न\u200cक"


def test_exactly_what_a_terminal_obeys_is_spelt_out() -> None:
    characters = map(chr, range(0x10000))

    assert [it for it in characters if (visible(it) != it) != is_obeyed(it)] == []
    beyond = "".join(map(chr, range(0x10000, sys.maxunicode + 1, 17)))
    assert obeyed(beyond) == set()
    assert visible(beyond) == beyond


def test_only_one_thing_has_a_noun_without_s() -> None:
    assert [counted(it, "row") for it in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]


def test_only_the_whole_is_100_percent() -> None:
    shares = (-0.5, 0.57, 0.9994, 0.99998, 1.0, 1.02)

    assert list(map(percent, shares)) == ["-50.0%", "57.0%", "99.9%", "99.9%", "100.0%", "102.0%"]
    assert percent(0.996, digits=0) == "99%"


def test_controls_are_spelt_as_python_spells_them() -> None:
    assert visible("a\x1b[31m\n\u202eb\x85\ud800") == r"a\x1b[31m\n\u202eb\x85\ud800"


def test_readable_text_stays_as_it_is() -> None:
    assert visible(READABLE) == visible_lines(READABLE) == READABLE
    assert visible_json(json.dumps(READABLE, ensure_ascii=False)) == f'"{READABLE}"'
    assert visible(MARKUP) == MARKUP


def test_line_ends_stay_where_lines_are_meant() -> None:
    assert visible_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_json_keeps_its_values_and_holds_nothing_that_is_obeyed(text: str) -> None:
    document = visible_json(json.dumps({text: [text]}, indent=1, ensure_ascii=False))

    assert json.loads(document) == {text: [text]}
    assert obeyed(document) == set()
    document.encode()
