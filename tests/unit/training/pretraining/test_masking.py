# torch types some of its methods partly.
# pyright: reportUnknownMemberType=false

from typing import cast

import pytest
import torch

from doubles.backbones import tiny_backbone
from nunatak_model import Encoding, TextTokenizer
from nunatak_training import InvalidRecipeError
from nunatak_training.pretraining.masking import MaskedText, Masking

NUM_TEXTS, LENGTH = 400, 60


@pytest.fixture(name="tokenizer", scope="module")
def make_tokenizer() -> TextTokenizer:
    return tiny_backbone(num_layers=1).tokenizer


def masking(tokenizer: TextTokenizer, *, share: float = 0.15, seed: int = 0) -> Masking:
    generator = torch.Generator().manual_seed(seed)
    return Masking(tokenizer, masked_share=share, generator=generator)


def letters(tokenizer: TextTokenizer, text: str) -> Encoding:
    return tokenizer.encode([text], max_length=512)[0]


def test_what_stood_in_the_hidden_places_is_remembered_and_the_rest_is_shown(
    tokenizer: TextTokenizer,
) -> None:
    encoding = letters(tokenizer, "every letter is a token")

    hidden = masking(tokenizer, share=0.5).hide(encoding)

    assert hidden is not None
    restored = torch.tensor(hidden.encoding.token_ids)
    restored[hidden.places] = hidden.token_ids
    assert torch.equal(restored, torch.tensor(encoding.token_ids))
    assert hidden.encoding.type_ids == encoding.type_ids


def test_special_tokens_are_never_chosen(tokenizer: TextTokenizer) -> None:
    encoding = letters(tokenizer, "abc")
    masks = masking(tokenizer, share=0.99)

    chosen = {place for _ in range(50) for place in _hidden(masks, encoding)}

    assert chosen == set(range(1, encoding.num_tokens - 1))


def test_a_short_text_still_has_one_hidden_token(tokenizer: TextTokenizer) -> None:
    masks = masking(tokenizer, share=0.001)

    assert all(len(_hidden(masks, letters(tokenizer, "ab"))) == 1 for _ in range(50))


def test_a_text_of_special_tokens_alone_has_nothing_to_hide(tokenizer: TextTokenizer) -> None:
    assert masking(tokenizer).hide(letters(tokenizer, "")) is None


def test_tokens_are_chosen_and_shown_in_the_shares_of_the_paper(tokenizer: TextTokenizer) -> None:
    masks = masking(tokenizer)
    encoding = letters(tokenizer, "a " * LENGTH)
    mask_id = 4  # of the tiny vocabulary, whose special tokens come first
    original = encoding.token_ids[1]
    shown = list[int]()
    for _ in range(NUM_TEXTS):
        text = masks.hide(encoding)
        assert text is not None
        shown += [text.encoding.token_ids[place] for place in _places(text)]

    share = len(shown) / (NUM_TEXTS * LENGTH)
    masked = shown.count(mask_id) / len(shown)
    kept = shown.count(original) / len(shown)
    assert share == pytest.approx(0.15, abs=0.01)
    assert masked == pytest.approx(0.8, abs=0.03)
    # A random token is now and then the one that stood there.
    assert kept == pytest.approx(0.1, abs=0.02)
    assert not {tokenizer.encode([""], max_length=8)[0].token_ids[0]} & {*shown}


def test_the_same_seed_hides_the_same_tokens(tokenizer: TextTokenizer) -> None:
    encoding = letters(tokenizer, "the same seed")
    first, second, other = (
        [_hidden(masking(tokenizer, seed=seed), encoding)] for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


def test_a_vocabulary_without_mask_token_is_refused(tokenizer: TextTokenizer) -> None:
    definition = tokenizer.definition.replace("[MASK]", "[GONE]")
    maskless = TextTokenizer(definition.encode(), num_token_types=2)

    with pytest.raises(InvalidRecipeError, match="mask token"):
        masking(maskless)


def _places(text: MaskedText) -> list[int]:
    return cast("list[int]", text.places.tolist())


def _hidden(masks: Masking, encoding: Encoding) -> list[int]:
    text = masks.hide(encoding)
    assert text is not None
    return _places(text)
