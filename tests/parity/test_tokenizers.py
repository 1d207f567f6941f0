"""Tokens, offsets, words and windows against transformers' fast tokenizers, family by family."""

from typing import Any

import pytest

from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_model import Alignment, Encoding, TextInput

TEXTS = random_texts(200)
PAIRS = [(f"Q {text[:8]}", other) for text, other in zip(TEXTS, TEXTS[::-1], strict=True)]
INPUTS: dict[str, list[TextInput]] = {"texts": list(TEXTS), "pairs": list(PAIRS)}


def windows_of_transformers(
    family: TokenizerFamily, kind: str, *, max_length: int, stride: int
) -> Any:  # noqa: ANN401 - untyped there
    columns = [TEXTS] if kind == "texts" else [list(column) for column in zip(*PAIRS, strict=True)]
    return published(family)(
        *columns,
        truncation="only_first" if kind == "texts" else "only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def alignment_of(window: Encoding) -> Alignment:
    assert window.alignment is not None
    return window.alignment


@pytest.mark.pairs
# In every case, the question leaves more than half of the shortest window to the context.
@pytest.mark.parametrize(("kind", "max_length"), [("texts", 24), ("pairs", 90), ("texts", 1024)])
@pytest.mark.parametrize("stride", [0, 7])
@pytest.mark.parametrize("family", TokenizerFamily)
def test_windows_match_transformers(
    family: TokenizerFamily, stride: int, kind: str, max_length: int
) -> None:
    expected = windows_of_transformers(family, kind, max_length=max_length, stride=stride)

    found = served(family).encode_windows(INPUTS[kind], max_length=max_length, stride=stride)

    owners = [text for text, windows in enumerate(found) for _ in windows]
    assert owners == expected["overflow_to_sample_mapping"]
    flat = [window for windows in found for window in windows]
    assert [list(it.token_ids) for it in flat] == expected["input_ids"]
    types = expected.get("token_type_ids", [[0] * it.num_tokens for it in flat])
    assert [list(it.type_ids) for it in flat] == types
    assert [list(alignment_of(it).offsets) for it in flat] == expected["offset_mapping"]
    for place, window in enumerate(flat):
        assert list(alignment_of(window).text_ids) == expected.sequence_ids(place)
        assert list(alignment_of(window).word_ids) == expected.word_ids(place)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_text_of_one_window_has_the_tokens_that_a_classifier_reads(
    family: TokenizerFamily,
) -> None:
    tokenizer = served(family)
    plain = tokenizer.encode([*TEXTS, *PAIRS], max_length=1024)

    found = tokenizer.encode_windows([*TEXTS, *PAIRS], max_length=1024, stride=0)

    assert [list(windows) for windows in found] == [[encoding] for encoding in plain]
