"""Laws of task-adaptive pretraining: the hidden tokens, the loss, and the trained parameters."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, toy_data
from doubles.tasks import EVERY_METHOD
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import Bottleneck, Full, Method
from nunatak_model import (
    Backbone,
    BranchSpec,
    Encoding,
    TextTokenizer,
    default_head,
    initial_parameters,
)
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import fit_task
from nunatak_training.recipes import Recipe, TaptSettings, default_recipe
from nunatak_training.report import Report
from nunatak_training.tapt import (
    NORM_BIAS,
    NORM_WEIGHT,
    OUTPUT_BIAS,
    MaskedText,
    Masking,
    adapt,
    language_loss,
)

TUNING = [it for it in EVERY_METHOD if it.kind != "head"]


def recipe_of(method: Method) -> Recipe:
    changes = {"epochs": 1, "batch_size": 8, "max_length": 32, "learning_rate": 5e-3}
    return default_recipe(method, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The parameters of a task before and after, and the loss of each step."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    losses: list[float]


@pytest.fixture(name="adapted", scope="module", params=TUNING, ids=lambda method: method.kind)
def adapt_each(request: pytest.FixtureRequest, backbone: Backbone) -> Adapted:
    method, report = request.param, RecordingReport()
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2)
    parameters = initial_parameters(
        BranchSpec(method=method, head=head), backbone, generator=torch.Generator().manual_seed(0)
    )
    before = {name: tensor.clone() for name, tensor in parameters.items()}
    texts = [example.model_input for example in toy_data().train.examples]
    encodings = backbone.tokenizer.encode(texts, max_length=32)
    settings = TaptSettings(epochs=6)
    adapt(parameters, encodings, settings, recipe_of(method), backbone, report=report)
    return Adapted(before=before, after=parameters, losses=report.losses)


def test_all_that_the_method_owns_moves_and_nothing_else(
    adapted: Adapted, backbone: Backbone
) -> None:
    still = {name for name, it in adapted.before.items() if torch.equal(it, adapted.after[name])}
    assert still == {name for name in adapted.before if name.startswith("head.")}
    untouched = tiny_backbone(num_layers=2).parameters
    assert all(torch.equal(tensor, untouched[n]) for n, tensor in backbone.parameters.items())
    assert not any(tensor.requires_grad for tensor in adapted.after.values())


def test_hidden_tokens_become_less_surprising(adapted: Adapted) -> None:
    assert sum(adapted.losses[-8:]) < 0.8 * sum(adapted.losses[:8])


def test_tuning_starts_from_what_was_adapted(backbone: Backbone) -> None:
    recipe = recipe_of(Bottleneck(size=8)).model_copy(update={"tapt": TaptSettings(epochs=2)})

    data = toy_data(num_train=16, num_dev=4)

    plain = fit_task(data, recipe_of(Bottleneck(size=8)), backbone, report=Report())
    first, again = (fit_task(data, recipe, backbone, report=Report()) for _ in range(2))

    assert all(torch.equal(first.parameters[name], it) for name, it in again.parameters.items())
    assert any(not torch.equal(first.parameters[name], it) for name, it in plain.parameters.items())
    assert first.recipe.digest != plain.recipe.digest


NUM_TEXTS, LENGTH = 400, 60


@pytest.fixture(name="tokenizer", scope="module")
def make_tokenizer() -> TextTokenizer:
    return tiny_backbone(num_layers=1).tokenizer


def masking(tokenizer: TextTokenizer, *, share: float = 0.15) -> Masking:
    generator = torch.Generator().manual_seed(0)
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
    mask_id = 4  # the tiny vocabulary begins with its special tokens
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
    # A random token may equal the original token.
    assert kept == pytest.approx(0.1, abs=0.02)
    assert not {tokenizer.encode([""], max_length=8)[0].token_ids[0]} & {*shown}


def test_a_vocabulary_without_mask_token_is_refused(tokenizer: TextTokenizer) -> None:
    definition = tokenizer.definition.replace("[MASK]", "[GONE]")
    maskless = TextTokenizer(definition.encode(), num_token_types=2)

    with pytest.raises(InvalidRecipeError, match="mask token"):
        masking(maskless)


def test_words_of_another_width_than_the_vectors_are_refused(backbone: Backbone) -> None:
    narrow = {"embeddings.word": torch.zeros(len(backbone.words), 8)}
    recipe = default_recipe(Full(), changes={"tapt": {}})
    encodings = backbone.tokenizer.encode(["a text"], max_length=8)

    with pytest.raises(InvalidRecipeError, match="leave tapt out"):
        adapt(narrow, encodings, TaptSettings(), recipe, backbone, report=Report())


def _places(text: MaskedText) -> list[int]:
    return cast("list[int]", text.places.tolist())


def _hidden(masks: Masking, encoding: Encoding) -> list[int]:
    text = masks.hide(encoding)
    assert text is not None
    return _places(text)


def test_loss_match_transformers_masked_language_model() -> None:
    backbone = tiny_backbone(num_layers=1)
    config = backbone.config
    torch.manual_seed(0)
    model: Any = BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_width,
            num_hidden_layers=1,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_width,
        )
    ).eval()
    head = model.cls.predictions
    hidden = torch.randn(2, 6, config.hidden_width)
    places = torch.tensor([[1, 4], [2, 3]])
    token_ids = torch.tensor([[7, 8], [9, 10]])
    labels = torch.full((2, 6), -100).scatter(1, places, token_ids)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
        expected = model.loss_function(head(hidden), labels, vocab_size=config.vocab_size)
        vectors = head.transform.dense(hidden)
        norm = head.transform.LayerNorm

        found = language_loss(
            list(vectors),
            [_text(places[row], token_ids[row]) for row in range(2)],
            {NORM_WEIGHT: norm.weight, NORM_BIAS: norm.bias, OUTPUT_BIAS: head.bias},
            head.decoder.weight,
            epsilon=norm.eps,
        )

    torch.testing.assert_close(found, expected)


def _text(places: torch.Tensor, token_ids: torch.Tensor) -> MaskedText:
    nothing = Encoding(token_ids=(), type_ids=())
    return MaskedText(encoding=nothing, places=places, token_ids=token_ids)
