"""The head of masked language modelling: `BertForMaskedLM`'s, tied to the word embeddings.

Axes: tokens = tokens of a text, chosen = hidden tokens of a batch, width = hidden width,
vocabulary = token ids.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model import Backbone, BranchSpec, HeadKind, HeadSpec, Method
from nunatak_training.pretraining.masking import MaskedText

NORM_WEIGHT, NORM_BIAS, OUTPUT_BIAS = "head.lm.norm", "head.lm.norm_bias", "head.lm.bias"


def language_spec(method: Method, backbone: Backbone) -> BranchSpec:
    """The branch whose head is the first map of the language head: one vector for each token."""
    width = backbone.config.hidden_width
    return BranchSpec(
        method=method, head=HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=width)
    )


def initial_decoder(backbone: Backbone) -> dict[str, Tensor]:
    """What the language head has beside its first map and the word embeddings, in float32."""
    config, device = backbone.config, backbone.device
    return {
        NORM_WEIGHT: torch.ones(config.hidden_width, device=device),
        NORM_BIAS: torch.zeros(config.hidden_width, device=device),
        OUTPUT_BIAS: torch.zeros(config.vocab_size, device=device),
    }


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
        logits, torch.cat([text.token_ids for text in texts]).to(device)
    )
