"""Words and answers have tokens in every family of tokenizers."""

import pytest

from doubles.examples import name_questions
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_training.data import Answers, Word
from nunatak_training.objectives.answering import NOWHERE, answer_tokens
from nunatak_training.objectives.tagging import first_tokens


@pytest.mark.parametrize("family", TokenizerFamily)
def test_every_answer_has_tokens_that_spell_it(family: TokenizerFamily) -> None:
    tokenizer = served(family)
    for example in name_questions().train.examples:
        assert isinstance(example.label, Answers)
        ((window,),) = tokenizer.encode_windows([example.model_input], max_length=64, stride=0)

        first, last = answer_tokens(window, example.label.spans)

        assert (first, last) != NOWHERE
        assert window.alignment is not None
        begin, end = window.alignment.offsets[first][0], window.alignment.offsets[last][1]
        # ModernBERT counts the space before a word as the word's.
        assert (example.text_pair or "")[begin:end].strip() == example.label.spans[0].text


@pytest.mark.parametrize("family", TokenizerFamily)
def test_every_word_has_a_token_of_its_own(family: TokenizerFamily) -> None:
    words = ["I", "saw", "a", "report", ",", "x", "é", "大", "🙂", "&", "O'Neil"]
    text = " ".join(words)
    begins = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
    label = tuple(
        Word(begin=begin, end=begin + len(word), tag="O")
        for begin, word in zip(begins, words, strict=True)
    )
    ((window,),) = served(family).encode_windows([text], max_length=64, stride=0)

    (found,) = first_tokens([window], label)

    assert window.alignment is not None
    assert list(found) == list(range(len(words)))
    for number, token in found.items():
        begin, end = window.alignment.offsets[token]
        spelt = text[begin:end].strip()
        assert spelt
        assert words[number].startswith(spelt)
