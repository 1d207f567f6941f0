"""Representational similarity of a model before and after training.

He et al. 2021, "On the Effectiveness of Adapter-based Tuning" (arXiv:2106.03164), sec. 2.2. The
same tokens go through both models. Each model gives a matrix of the cosine similarities of all
pairs of tokens. The result is Pearson's correlation of the upper triangles of both matrices.
Special tokens are skipped, and packed inputs have no padding. A result of 1 means that training has
not changed the relations between tokens.

Axes: tokens = sampled tokens, width = hidden width.
"""

import random
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, Branch, Encoding
from nunatak_model.architectures import architecture_of
from nunatak_model.layer import TokenSpan, mix_layer

NUM_TOKENS = 5000
"""The number of tokens that the paper samples from the dev set (figure 2)."""


def similarity(
    before: Float[Tensor, "tokens width"], after: Float[Tensor, "tokens width"]
) -> float:
    """Return Pearson's correlation of the pairwise cosine similarities; the widths may differ.

    Semantics:
        pairs = [(i, j) for i in range(tokens) for j in range(i + 1, tokens)]
        pearson([cos(before[i], before[j]) for i, j in pairs],
                [cos(after[i], after[j]) for i, j in pairs])
    """
    return torch.corrcoef(torch.stack([_cosines(before), _cosines(after)]))[0, 1].item()


def layer_similarities(
    backbone: Backbone,
    branch: Branch,
    inputs: Sequence[Encoding],
    *,
    num_tokens: int = NUM_TOKENS,
    seed: int = 0,
) -> tuple[float, ...]:
    """Compare a branch with its backbone after each layer, on tokens drawn from the inputs.

    Raises:
        NunatakError: `too_few_examples`, the inputs have fewer than three tokens.
    """
    chosen = sampled_tokens(inputs, num_tokens=num_tokens, seed=seed)
    before = hidden_states(backbone, inputs)
    after = hidden_states(backbone, inputs, branch=branch)
    return tuple(
        similarity(first[chosen], second[chosen])
        for first, second in zip(before, after, strict=True)
    )


def sampled_tokens(
    inputs: Sequence[Encoding], *, num_tokens: int, seed: int
) -> Int[Tensor, " tokens"]:
    """Return the positions of at most `num_tokens` text tokens in the packed inputs, in order.

    Raises:
        NunatakError: `too_few_examples`, fewer than three tokens have no correlation.
    """
    of_text = [
        alignment.text_ids[position] is not None
        for alignment in (encoding.alignment for encoding in inputs)
        if alignment is not None
        for position in range(len(alignment.text_ids))
    ]
    positions = [position for position, is_text in enumerate(of_text) if is_text]
    if len(positions) < 3:
        raise NunatakError(
            "too_few_examples",
            where="rsa",
            problem=f"expected texts of at least 3 tokens together, got {len(positions)}",
        )
    drawn = random.Random(seed).sample(positions, min(num_tokens, len(positions)))
    return torch.tensor(sorted(drawn))


def _cosines(states: Float[Tensor, "tokens width"]) -> Float[Tensor, " pairs"]:
    unit = torch.nn.functional.normalize(states.double(), dim=1)
    above = torch.triu_indices(len(states), len(states), offset=1)
    return (unit @ unit.T)[above[0], above[1]]


def hidden_states(
    backbone: Backbone, inputs: Sequence[Encoding], *, branch: Branch | None = None
) -> tuple[Float[Tensor, "tokens width"], ...]:
    """Return the result of each layer, from the lowest up: of a branch, or of the backbone itself.

    Answers come from `nunatak_model.forward`. The states of all
    inputs lie one after another. The branch's head reads the result of the last layer.
    """
    config = backbone.config
    architecture = architecture_of(config)
    own = None if branch is None else branch.embeddings
    states = list[Tensor]()
    with torch.inference_mode():
        hidden = architecture.embed(list(inputs), own or backbone.embeddings, config)
        everything = TokenSpan(tokens=slice(0, len(hidden)))
        lengths = tuple(encoding.num_tokens for encoding in inputs)
        attention = backbone.ops.attention(lengths, hidden.device)
        run_layer = architecture.plan_layers(attention, config)
        for index in range(config.num_layers):
            override = None if branch is None else branch.layers.get(index)
            layer = mix_layer(
                backbone.layer(index),
                [] if override is None else [(everything, override)],
                index=index,
                num_tokens=len(hidden),
                relative=backbone.embeddings.relative,
                kernels=backbone.ops.tasks,
            )
            hidden = run_layer(hidden, layer)
            states.append(hidden)
    return tuple(states)
