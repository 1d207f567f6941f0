"""Laws of the texts."""

import random
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.refusals import raises
from nunatak_loadtest import Scenario
from nunatak_loadtest.scenario import (
    FileTexts,
    LogNormalLengths,
    NormalLengths,
    Texts,
)
from nunatak_loadtest.texts import read_texts, text_source


def drawn(texts: Texts, count: int, *, repeated_share: float = 0.0, seed: int = 0) -> list[str]:
    scenario = Scenario(name="texts", texts=texts, repeated_share=repeated_share)
    source = text_source(scenario, random.Random(seed))
    return [source.draw() for _ in range(count)]


def test_drawn_texts_are_all_different() -> None:
    texts = drawn(NormalLengths(), 2000)

    assert len(set(texts)) == 2000


def test_repeated_share_matches_texts_sent_before() -> None:
    texts = drawn(NormalLengths(), 2000, repeated_share=0.5)

    assert 0.45 < len(set(texts)) / 2000 < 0.55


def test_normal_lengths_have_their_mean_and_deviation() -> None:
    lengths = [len(text.split()) for text in drawn(NormalLengths(mean=32, deviation=8), 2000)]

    assert abs(mean(lengths) - 32) < 1
    assert abs(stdev(lengths) - 8) < 1


@given(
    texts=st.one_of(
        st.builds(
            NormalLengths,
            mean=st.floats(1, 300),
            deviation=st.floats(0, 300),
            longest=st.integers(1, 128),
        ),
        st.builds(
            LogNormalLengths,
            median=st.floats(1, 300),
            sigma=st.floats(0.1, 3),
            longest=st.integers(1, 128),
        ),
    )
)
def test_every_text_has_one_word_to_the_most_that_are_allowed(
    texts: NormalLengths | LogNormalLengths,
) -> None:
    assert all(1 <= len(text.split()) <= texts.longest for text in drawn(texts, 20))


def test_text_file_holds_one_text_per_line(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one\n\n  two  \n", encoding="utf-8")

    assert read_texts(file) == ("one", "two")
    assert set(drawn(FileTexts(path=str(file)), 50)) == {"one", "two"}


@pytest.mark.parametrize(
    "content", [pytest.param(b"\n \n", id="blank"), pytest.param(b"\xff\xfe", id="not-utf8")]
)
def test_text_file_without_texts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)

    with raises("invalid_settings"):
        read_texts(file)


def test_missing_text_file_is_named(tmp_path: Path) -> None:
    with raises("invalid_settings", match=r"absent\.txt"):
        read_texts(tmp_path / "absent.txt")
