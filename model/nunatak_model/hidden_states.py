"""Hidden states of every layer, for looking into a model; answers come from the mixed forward.

Axes: tokens = tokens of all inputs, one input after another, width = hidden width.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model.architectures import architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.branch import Branch
from nunatak_model.layer import TokenSpan, mix_layer
from nunatak_model.text.encoding import Encoding


def hidden_states(
    backbone: Backbone, inputs: Sequence[Encoding], *, branch: Branch | None = None
) -> tuple[Float[Tensor, "tokens width"], ...]:
    """Return what each layer gives, from the lowest up: of a branch, or of the backbone itself.

    The last is what the branch's head reads.
    """
    config = backbone.config
    architecture = architecture_of(config)
    own = None if branch is None else branch.embeddings
    states = list[Tensor]()
    with torch.inference_mode():
        hidden = architecture.embed(list(inputs), own or backbone.embeddings, config)
        everything = TokenSpan(tokens=slice(0, len(hidden)))
        lengths = tuple(encoding.num_tokens for encoding in inputs)
        attention = backbone.kernels.attention(lengths, hidden.device)
        run_layer = architecture.plan_layers(attention, config)
        for index in range(config.num_layers):
            override = None if branch is None else branch.layers.get(index)
            layer = mix_layer(
                backbone.layer(index),
                [] if override is None else [(everything, override)],
                index=index,
                num_tokens=len(hidden),
            )
            hidden = run_layer(hidden, layer, dropout=0.0)
            states.append(hidden)
    return tuple(states)
