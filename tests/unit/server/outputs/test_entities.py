from collections.abc import Sequence

import pytest

from doubles.backbones import tiny_backbone
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.entities import Entity, Window, find_entities, window_of

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
LABELS = ("O", "B-X", "I-X")


def windows_of(text: str, labels: Sequence[int], *, max_length: int = 64) -> list[Window]:
    """Windows whose tokens have high scores for the label of their first character."""
    (encodings,) = TOKENIZER.encode_windows([text], max_length=max_length, stride=2)
    found: list[Window] = []
    for encoding in encodings:
        assert encoding.alignment is not None
        logits: list[float] = []
        for begin, _ in encoding.alignment.offsets:
            logits += [9.0 if label == labels[begin] else 0.0 for label in range(len(LABELS))]
        found.append(window_of(encoding, logits))
    return found


def entities(windows: list[Window], options: Parameters) -> list[Entity]:
    return find_entities(windows, labels=LABELS, join=TOKENIZER.join, options=options)


def test_a_word_has_the_label_of_its_first_token_and_its_number() -> None:
    options = Parameters(aggregation_strategy=AggregationStrategy.WORD, ignore_labels=[])

    found = entities(windows_of("ab cd", [1, 2, 0, 0, 1]), options)

    assert [(it["entity"], it["index"]) for it in found if "entity" in it] == [("B-X", 0), ("O", 1)]
    assert [(it["start"], it["end"]) for it in found] == [(0, 2), (3, 5)]


def test_ignored_labels_are_left_out() -> None:
    found = entities(windows_of("ab cd", [1, 2, 0, 0, 0]), Parameters())

    assert [it["entity"] for it in found if "entity" in it] == ["B-X", "I-X"]


@pytest.mark.parametrize("strategy", AggregationStrategy)
def test_windows_give_what_the_whole_text_gives(strategy: AggregationStrategy) -> None:
    text = "aa bb cc dd ee ff gg hh"
    labels = [1, 1, 0] * 8
    options = Parameters(aggregation_strategy=strategy)

    whole = entities(windows_of(text, labels), options)
    merged = entities(windows_of(text, labels, max_length=10), options)

    places = [(it["start"], it["end"], it["score"]) for it in whole]
    assert len(windows_of(text, labels, max_length=10)) == 3
    assert [(it["start"], it["end"], it["score"]) for it in merged] == places
    assert len(places) >= 8


def test_of_two_overlapping_entities_the_longer_stays() -> None:
    text = "abcdefghijkl"
    options = Parameters(aggregation_strategy=AggregationStrategy.SIMPLE)

    found = entities(windows_of(text, [1] + [2] * 11, max_length=10), options)

    assert [(it["start"], it["end"]) for it in found] == [(0, 8)]


@pytest.mark.parametrize("family", [TokenizerFamily.ROBERTA, TokenizerFamily.MODERNBERT])
@pytest.mark.parametrize("stride", [0, 1, 2, 5])
def test_every_token_of_a_long_text_is_labelled_once(family: TokenizerFamily, stride: int) -> None:
    text = "I met 🙂🙂 in 東京\u3000 and 👩\u200d👧 in 서울."
    tokenizer = served(family)

    def labelled(max_length: int) -> list[Entity]:
        (encodings,) = tokenizer.encode_windows([text], max_length=max_length, stride=stride)
        windows = [window_of(it, [2.0, 1.0, 0.0] * it.num_tokens) for it in encodings]
        options = Parameters(ignore_labels=[])
        return find_entities(windows, labels=LABELS, join=tokenizer.join, options=options)

    whole, windowed = labelled(512), labelled(13)

    def spelt(entities: list[Entity]) -> list[tuple[str, int, int]]:
        return [(it["word"], it["start"], it["end"]) for it in entities]

    assert len({it["start"] for it in whole}) < len(whole)
    assert spelt(windowed) == spelt(whole)


def test_words_that_share_a_character_are_all_labelled_in_a_long_text() -> None:
    # U+00B4 is read as a space and an accent, so the character belongs to two words.
    text = "ab\u00b4cd ef gh ij kl mn"
    tokenizer = served(TokenizerFamily.XLM_ROBERTA)
    options = Parameters(aggregation_strategy=AggregationStrategy.WORD, ignore_labels=[])

    def words(max_length: int) -> list[int]:
        (encodings,) = tokenizer.encode_windows([text], max_length=max_length, stride=6)
        windows = [window_of(it, [2.0, 1.0, 0.0] * it.num_tokens) for it in encodings]
        found = find_entities(windows, labels=LABELS, join=tokenizer.join, options=options)
        return [it["index"] for it in found if "index" in it]

    assert words(16) == words(512) == list(range(7))


def test_a_text_without_entities_gives_an_empty_list() -> None:
    assert entities(windows_of("ab", [0, 0]), Parameters()) == []
