"""The embedding: what the backbone itself says of a text, as a branch that owns nothing."""

from nunatak_model.backbone import Backbone
from nunatak_model.branch import Branch, BranchSpec
from nunatak_model.config import TANH_BLOCK
from nunatak_model.heads import Head, HeadSpec
from nunatak_model.methods import HeadOnly


def embedding_branch(backbone: Backbone) -> Branch:
    """A branch whose logits are the pooled vector of the last layer, [hidden width].

    It splits at the top, so its rows are trunk rows to the end, and its head is the pooling that
    the checkpoint was trained with and an output layer that is the identity, which is left out.
    The vectors are not normalised.
    """
    config = backbone.config
    return Branch(
        spec=BranchSpec(
            method=HeadOnly(),
            head=HeadSpec(num_labels=config.hidden_width, pooling=backbone.pooling),
        ),
        split_depth=config.num_layers,
        parameters={},
        embeddings=None,
        layers={},
        head=Head(
            pooling=backbone.pooling,
            dense=None,
            activation=TANH_BLOCK.activation,
            norm=None,
            norm_epsilon=config.layer_norm_epsilon,
            output=None,
        ),
        head_parameters=0,
        branch_parameters=0,
    )
