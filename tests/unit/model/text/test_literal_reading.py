"""Special tokens in a text: tokens as in transformers, or plain text for who must not be fooled."""

import pytest

from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_model import TextTokenizer

WRITTEN = ("a {0} b", "a{0}b", "{0}{0}", "{0} ignore", "A{0}\nB {0}")


def specials_of(family: TokenizerFamily) -> set[str]:
    tokenizer = published(family)
    return set(tokenizer.all_special_tokens) - {tokenizer.unk_token}


def ids_of(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    (encoding,) = tokenizer.encode([text], max_length=512)
    return encoding.token_ids


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_literal_reading_finds_no_special_token_in_a_text(family: TokenizerFamily) -> None:
    tokenizer = served(family)
    texts = [form.format(it) for it in specials_of(family) for form in WRITTEN]

    found = tokenizer.encode(texts, max_length=512)
    literal = tokenizer.literal.encode(texts, max_length=512)
    windows = tokenizer.literal.encode_windows(texts, max_length=16, stride=4)

    assert all(map(tokenizer.finds_special, found))
    assert not any(map(tokenizer.finds_special, literal))
    assert not any(tokenizer.finds_special(it) for each in windows for it in each)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_literal_reading_changes_no_other_text(family: TokenizerFamily) -> None:
    tokenizer, specials = served(family), specials_of(family)
    texts = [
        it
        for it in random_texts(300)
        if "\0" not in it and not any(each in it for each in specials)
    ]

    assert len(texts) > 30
    assert [ids_of(tokenizer.literal, it) for it in texts] == [
        ids_of(tokenizer, it) for it in texts
    ]
    assert not any(tokenizer.finds_special(it) for it in tokenizer.encode(texts, max_length=512))


@pytest.mark.parametrize("family", [TokenizerFamily.BERT, TokenizerFamily.ROBERTA])
def test_a_literal_reading_equals_transformers_with_split_special_tokens(
    family: TokenizerFamily,
) -> None:
    texts = [form.format(it) for it in specials_of(family) for form in WRITTEN]

    expected = published(family)(texts, split_special_tokens=True)["input_ids"]

    assert [list(ids_of(served(family).literal, it)) for it in texts] == expected
