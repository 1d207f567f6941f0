"""Task-adaptive pretraining (TAPT): masked language modelling on a task's own texts, before tuning.

Gururangan et al. 2020 (arXiv:2004.10964), sec. 4; with adapters, only the adapters are trained, as
in He et al. 2021 (arXiv:2106.03164), sec. 3.1. The rule for hidden tokens: Devlin et al. 2019
(arXiv:1810.04805), sec. 3.1, task 1. The head is `BertForMaskedLM`'s, tied to the word embeddings.

Axes: tokens = tokens of a text, chosen = hidden tokens of a batch, width = hidden width,
vocabulary = token ids.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import cast

import torch
from jaxtyping import Float, Int
from pydantic import JsonValue
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import HeadKind
from nunatak_model import (
    Backbone,
    BranchSpec,
    Encoding,
    HeadSpec,
    TextTokenizer,
    build_branch,
    initial_parameters,
)
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.loop.checkpoint import SavedRun, snapshot
from nunatak_training.loop.fit import logits_of, run_epochs, shuffled_batches
from nunatak_training.loop.step import HEAD_PREFIX
from nunatak_training.recipes import Recipe, RegularizerName, TaptSettings, changed_recipe
from nunatak_training.report import Report

MASKS = ("[MASK]", "<mask>")
MASKED, REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that become the mask token, or a random token; the rest stay."""
WORDS = "embeddings.word"
NORM_WEIGHT, NORM_BIAS, OUTPUT_BIAS = "head.lm.norm", "head.lm.norm_bias", "head.lm.bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText:
    """A text with hidden tokens, and the original tokens."""

    encoding: Encoding
    places: Int[Tensor, " chosen"]
    token_ids: Int[Tensor, " chosen"]


class Masking:
    """Hides tokens with its own random state; special tokens are never hidden."""

    def __init__(
        self, tokenizer: TextTokenizer, *, masked_share: float, generator: torch.Generator
    ) -> None:
        vocabulary = Tokenizer.from_str(tokenizer.definition)
        masks = [vocabulary.token_to_id(mask) for mask in MASKS]
        found = next((mask for mask in masks if mask is not None), None)
        if found is None:
            raise InvalidRecipeError(
                f"tapt needs a mask token ({' or '.join(MASKS)}), which the backbone's vocabulary "
                "lacks; leave tapt out"
            )
        added = vocabulary.get_added_tokens_decoder()
        self._mask_id: int = found
        marked = {number for number, token in added.items() if token.special}
        # The tokens around a text are special, even if the vocabulary does not mark them.
        self._special = frozenset({found, *marked, *vocabulary.encode("").ids})
        self._ordinary = torch.tensor(sorted({*vocabulary.get_vocab().values()} - self._special))
        self._masked_share = masked_share
        self._generator = generator

    def hide(self, encoding: Encoding) -> MaskedText | None:
        """Hide each token with the given probability, and at least one token of a text.

        In the papers a text may have no hidden token; such a text would teach nothing.
        """
        readable = [
            place for place, it in zip(count(), encoding.token_ids) if it not in self._special
        ]
        if not readable:
            return None
        draws = torch.rand(len(readable), generator=self._generator)
        chosen = draws < self._masked_share
        chosen[draws.argmin()] = True
        places = torch.tensor(readable)[chosen]
        token_ids = torch.tensor(encoding.token_ids)
        shown = self._shown(token_ids, places)
        return MaskedText(
            encoding=replace(encoding, token_ids=tuple(cast("list[int]", shown.tolist()))),
            places=places,
            token_ids=token_ids[places],
        )

    def _shown(
        self, token_ids: Int[Tensor, " tokens"], places: Int[Tensor, " chosen"]
    ) -> Int[Tensor, " tokens"]:
        num_chosen = len(places)
        fate = torch.rand(num_chosen, generator=self._generator)
        picks = torch.randint(len(self._ordinary), (num_chosen,), generator=self._generator)
        shown = torch.where(fate < MASKED, self._mask_id, token_ids[places])
        shown = torch.where(fate >= 1 - REPLACED, self._ordinary[picks], shown)
        return token_ids.scatter(0, places, shown)


def language_loss(
    vectors: Sequence[Float[Tensor, "tokens width"]],
    texts: Sequence[MaskedText],
    decoder: Mapping[str, Tensor],
    words: Float[Tensor, "vocabulary width"],
    *,
    epsilon: float,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the hidden tokens.

    Semantics:
        logits = norm(gelu(vector of the hidden token)) @ words.T + bias
    """
    device = words.device
    chosen = [each[text.places.to(device)] for each, text in zip(vectors, texts, strict=True)]
    hidden = functional.gelu(torch.cat(chosen))
    norm = (decoder[NORM_WEIGHT], decoder[NORM_BIAS])
    hidden = functional.layer_norm(hidden, norm[0].shape, *norm, epsilon)
    logits = functional.linear(hidden, words.to(hidden.dtype), decoder[OUTPUT_BIAS])
    return functional.cross_entropy(
        logits.float(), torch.cat([text.token_ids for text in texts]).to(device)
    )


LanguageLoss = Callable[[Sequence[MaskedText]], Float[Tensor, ""]]


def adapt(
    parameters: Mapping[str, Tensor],
    encodings: Sequence[Encoding],
    settings: TaptSettings,
    recipe: Recipe,
    backbone: Backbone,
    *,
    report: Report,
    checkpoint: SavedRun | None = None,
) -> None:
    """Train the method's own part of `parameters`, in place, by masked language modelling.

    The language head, tied to the word embeddings, starts from random numbers and is discarded at
    the end. Backbone, task head and the caller's random state do not change. The recipe of tuning
    gives optimizer, schedule and batch size. The checkpoint holds the progress, and at the end the
    result.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    masking = Masking(backbone.tokenizer, masked_share=settings.masked_share, generator=generator)
    readable = [encoding for encoding in encodings if masking.hide(encoding) is not None]
    if not readable:
        raise InvalidRecipeError("tapt needs texts with words in them; leave tapt out")
    changes: dict[str, JsonValue] = {
        "epochs": settings.epochs,
        "min_steps": 0,
        "learning_rate": settings.learning_rate or recipe.learning_rate,
        "regularizer": {"name": RegularizerName.NONE.value},
    }
    recipe = changed_recipe(recipe, changes)
    moved, loss_of = _language_model(parameters, recipe, backbone, generator)
    count, size = len(readable), recipe.batch_size

    def loss_on(batch: Sequence[int]) -> Float[Tensor, ""]:
        hidden = [masking.hide(readable[index]) for index in batch]
        return loss_of([text for text in hidden if text is not None])

    try:
        state = run_epochs(
            moved,
            recipe,
            steps_per_epoch=math.ceil(count / size),
            batches=lambda it: shuffled_batches(it, count=count, size=size, loss=loss_on),
            dev_score=None,
            report=report,
            checkpoint=checkpoint,
            randomness=generator,
        )
        if checkpoint is not None:
            # Tuning starts from this snapshot, also after a kill.
            checkpoint.save(snapshot(state))
    finally:
        for tensor in moved.values():
            tensor.requires_grad_(False)  # noqa: FBT003 - torch's name differs from the stub's name
            tensor.grad = None


def _language_model(
    parameters: Mapping[str, Tensor], recipe: Recipe, backbone: Backbone, generator: torch.Generator
) -> tuple[dict[str, Tensor], LanguageLoss]:
    config, device = backbone.config, backbone.device
    words = parameters.get(WORDS, backbone.words)
    if words.shape[1] != config.hidden_width:
        raise InvalidRecipeError(
            f"tapt predicts words from vectors of the words' width, {words.shape[1]}; the "
            f"backbone's vectors have {config.hidden_width}; leave tapt out"
        )
    # The branch's head is the first map of the language head.
    head_spec = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=config.hidden_width)
    spec = BranchSpec(method=recipe.method, head=head_spec)
    own = {name: it for name, it in parameters.items() if not name.startswith(HEAD_PREFIX)}
    fresh = initial_parameters(spec, backbone, generator=generator)
    head = {name: it for name, it in fresh.items() if name.startswith(HEAD_PREFIX)}
    logits = logits_of(backbone, build_branch(spec, config, {**own, **head}))
    decoder = {
        NORM_WEIGHT: torch.ones(config.hidden_width, device=device),
        NORM_BIAS: torch.zeros(config.hidden_width, device=device),
        OUTPUT_BIAS: torch.zeros(config.vocab_size, device=device),
    }

    def loss(texts: Sequence[MaskedText]) -> Float[Tensor, ""]:
        vectors = logits([text.encoding for text in texts], dropout=recipe.dropout)
        return language_loss(vectors, texts, decoder, words, epsilon=config.layer_norm_epsilon)

    return {**own, **head, **decoder}, loss
