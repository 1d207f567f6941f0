from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from doubles.backbones import Family, tiny_backbone, tiny_tokenizer
from doubles.refusals import raises
from nunatak_model import TextInput
from nunatak_model.text.tokenizer import TextTokenizer

TOKENIZER = tiny_backbone(num_layers=1).tokenizer


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    (encoding,) = TOKENIZER.encode([("ab", "c" * 40)], max_length=12)

    assert encoding.type_ids == (0,) * 4 + (1,) * 8


def test_callers_with_different_lengths_do_not_disturb_one_another() -> None:
    def encode(max_length: int) -> set[int]:
        texts = ["x" * 60] * 20
        return {e.num_tokens for e in TOKENIZER.encode(texts, max_length=max_length)}

    with ThreadPoolExecutor(4) as pool:
        lengths = list(range(3, 40)) * 3
        assert list(pool.map(encode, lengths)) == [{length} for length in lengths]


def test_equal_texts_give_equal_encodings_and_others_do_not() -> None:
    first, again, other = TOKENIZER.encode(["hello", "hello", "hellp"], max_length=16)

    assert first == again
    assert hash(first) == hash(again)
    assert first != other


LONG = "the quick brown fox. jumps-over 13 lazy dogs! " * 6
FAMILIES = ("bert", "roberta")


def published_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """The same tokenizer, run by transformers."""
    start, end, padding, unknown = {
        "bert": ("[CLS]", "[SEP]", "[PAD]", "[UNK]"),
        "roberta": ("<s>", "</s>", "<pad>", "<unk>"),
    }[family]
    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(family),
        cls_token=start,
        sep_token=end,
        pad_token=padding,
        unk_token=unknown,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_context_of_a_question_is_windowed(family: Family) -> None:
    tokenizer = tiny_backbone(num_layers=1, family=family).tokenizer
    expected = published_tokenizer(family)(
        "who jumps?",
        LONG,
        truncation="only_second",
        max_length=40,
        stride=7,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )

    (windows,) = tokenizer.encode_windows([("who jumps?", LONG)], max_length=40, stride=7)

    assert [list(window.token_ids) for window in windows] == expected["input_ids"]
    for index, window in enumerate(windows):
        assert window.alignment is not None
        assert list(window.alignment.offsets) == expected["offset_mapping"][index]
        assert list(window.alignment.text_ids) == expected.sequence_ids(index)
        assert list(window.alignment.word_ids) == expected.word_ids(index)


def test_a_long_question_leaves_half_of_every_window_to_the_context() -> None:
    (windows,) = TOKENIZER.encode_windows([("q" * 80, "c" * 100)], max_length=23, stride=50)

    text_ids = [window.alignment.text_ids for window in windows if window.alignment]
    assert {ids.count(0) for ids in text_ids} == {10}
    assert all(ids.count(1) <= 10 for ids in text_ids)
    assert len(windows) == 19


def test_tokens_know_their_words_and_unknown_ones_their_spelling() -> None:
    ((window,),) = TOKENIZER.encode_windows(["Abc, d\u20ac"], max_length=40, stride=8)

    alignment = window.alignment
    assert alignment is not None
    assert alignment.word_ids == (None, 0, 0, 0, 1, 2, None)
    assert alignment.tokens[1:-1] == ("a", "##b", "##c", ",", "d\u20ac")
    assert alignment.continues_word[1:-1] == (False, True, True, False, False)


@pytest.fixture(scope="module")
def backtracking() -> TextTokenizer:
    library = tiny_tokenizer("bert")
    library.pre_tokenizer = Split(Regex("(a+)+$"), behavior="isolated")
    return TextTokenizer(library.to_str().encode(), num_token_types=2)


@pytest.mark.parametrize("hostile", ["a" * 60 + "!", ("hello", "a" * 60 + "!")])
@pytest.mark.parametrize("way", ["encode", "encode_all", "encode_windows"])
def test_a_text_that_the_library_gives_up_on_is_named_and_others_are_read(
    backtracking: TextTokenizer, hostile: TextInput, way: str
) -> None:
    stride = {} if way == "encode" else {"stride": 2}
    encode = partial(getattr(backtracking, way), max_length=30, **stride)

    with raises("invalid_text", match="input 1 contains a run of characters"):
        encode([("a pair", "of texts"), hostile, "hello"])

    assert len(encode(["hello"])) == 1
