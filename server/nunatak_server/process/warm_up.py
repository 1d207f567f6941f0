"""The rows that a server answers before it says that it is ready."""

from dataclasses import replace

from nunatak_model import Backbone, Branch, BranchSpec, TopK, embedding_branch
from nunatak_model.layer import OwnLayer

WARM_UP_TEXT = "ready " * 128
WARM_UP_TOKENS = (8, 128, 12, 96)
"""Of differing sizes, so that it is known from the start what a batch takes beside its tokens."""


def warm_up_branch(backbone: Backbone) -> Branch:
    """A branch whose rows run every held layer, and that takes no memory.

    Where upper layers are not held, held ones stand in for them: its answers mean nothing.
    """
    branch, held = embedding_branch(backbone), backbone.layers
    missing = backbone.config.num_layers - len(held)
    if not missing:
        return branch
    return replace(
        branch,
        spec=BranchSpec(method=TopK(num_layers=missing), head=branch.spec.head),
        split_depth=len(held),
        layers={
            index: OwnLayer(weights=held[index % len(held)])
            for index in range(len(held), backbone.config.num_layers)
        },
    )
