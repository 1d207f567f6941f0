import itertools
import random

import pytest
from tokenizers import Tokenizer

from doubles.backbones import Family, tiny_backbone, tiny_tokenizer
from nunatak_model import Encoding, TextInput

FAMILIES = ("bert", "roberta")
TOKENIZER = tiny_backbone(num_layers=1).tokenizer


def cut_by_the_library(family: Family, text: TextInput, max_length: int) -> tuple[list[int], ...]:
    library: Tokenizer = tiny_tokenizer(family)
    library.no_padding()
    library.enable_truncation(max_length)
    (found,) = library.encode_batch([text])
    return found.ids, found.type_ids


def letters_of(encoding: Encoding) -> int:
    """Number of tokens that are read for the first time in this window."""
    return encoding.num_tokens - encoding.part.num_repeated


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_cut_as_the_tokenizers_library_cuts_them(family: Family) -> None:
    tokenizer = tiny_backbone(num_layers=1, family=family).tokenizer
    draw = random.Random(0)
    for max_length in (4, 5, 6, 7, 12, 13):
        for _ in range(40):
            first, second = ("a" * draw.randint(1, 18) for _ in range(2))
            for text in (first, (first, second)):
                (found,) = tokenizer.encode([text], max_length=max_length)
                expected = cut_by_the_library(family, text, max_length)
                if family == "bert":
                    assert (list(found.token_ids), list(found.type_ids)) == expected
                else:
                    assert list(found.token_ids) == expected[0]


@pytest.mark.parametrize("text", ["a" * 30, ("a" * 7, "b" * 30), ("a" * 40, "b" * 30)])
def test_an_encoding_counts_how_many_tokens_it_leaves_out(text: TextInput) -> None:
    (whole,) = TOKENIZER.encode([text], max_length=500)
    (cut,) = TOKENIZER.encode([text], max_length=16)

    assert whole.part.num_left_out == 0
    assert cut.num_tokens == 16
    assert cut.part.num_left_out == whole.num_tokens - 16


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["a few words, " * 9, ("who?", "a few words, " * 9)])
def test_windows_that_are_not_aligned_are_those_that_are(family: Family, text: TextInput) -> None:
    tokenizer = tiny_backbone(num_layers=1, family=family).tokenizer
    for max_length, stride in itertools.product((16, 23, 40), (0, 5, 64)):
        plain = tokenizer.encode_all([text], max_length=max_length, stride=stride)
        aligned = tokenizer.encode_windows([text], max_length=max_length, stride=stride)

        assert plain == aligned
        assert [it.part for it in plain[0]] == [it.part for it in aligned[0]]


@pytest.mark.parametrize("text", ["a" * 90, ("a" * 5, "b" * 90), ("a" * 40, "b" * 90)])
def test_windows_count_every_token_once_or_as_left_out(text: TextInput) -> None:
    (whole,) = TOKENIZER.encode([text], max_length=500)
    for max_length, stride in itertools.product((9, 16, 23, 140), (0, 3, 64)):
        (windows,) = TOKENIZER.encode_all([text], max_length=max_length, stride=stride)

        assert [it.part.index for it in windows] == list(range(len(windows)))
        assert all(it.num_tokens <= max_length for it in windows)
        left_out = sum(it.part.num_left_out for it in windows)
        assert sum(map(letters_of, windows)) + left_out == whole.num_tokens


def test_a_pair_that_fits_is_not_windowed() -> None:
    pair = ("a" * 30, "b" * 7)

    (windows,) = TOKENIZER.encode_all([pair], max_length=40, stride=4)

    assert list(windows) == TOKENIZER.encode([pair], max_length=40)


def test_the_first_text_of_a_pair_is_cut_only_if_half_of_a_window_is_too_little() -> None:
    (fitting,) = TOKENIZER.encode_all([("a" * 9, "b" * 50)], max_length=23, stride=4)
    assert [it.type_ids.count(0) for it in fitting] == [9 + 2] * len(fitting)
    assert not any(it.part.num_left_out for it in fitting)

    (long,) = TOKENIZER.encode_all([("a" * 30, "b" * 50)], max_length=23, stride=4)
    assert {it.type_ids.count(0) for it in long} == {10 + 2}
    assert [it.part.num_left_out for it in long] == [20, *[0] * (len(long) - 1)]

    # The second text leaves more than half of the window to the first text.
    (short,) = TOKENIZER.encode_all([("a" * 30, "b" * 3)], max_length=23, stride=4)
    assert [(it.type_ids.count(0), it.type_ids.count(1)) for it in short] == [(17 + 2, 3 + 1)]
    assert short[0].part.num_left_out == 13


@pytest.mark.parametrize("max_length", [1, 2])
@pytest.mark.parametrize("text", ["a" * 9, ("a" * 9, "b" * 9)])
def test_a_window_without_room_says_that_it_leaves_everything_out(
    text: TextInput, max_length: int
) -> None:
    for encode in (TOKENIZER.encode_all, TOKENIZER.encode_windows):
        ((window,),) = encode([text], max_length=max_length, stride=0)

        assert window.part.num_left_out == sum(map(len, text))
