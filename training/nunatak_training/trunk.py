"""Trunk activations of a data set, computed once: what is frozen need not run again each epoch."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Backbone, Encoding, TrunkActivations, run_trunk

MAX_TRUNK_BYTES = 2 * 1024**3
"""Larger sets are not kept: their trunk runs in every epoch, as without this module."""
BATCH_SIZE = 64


def cached_trunk(
    backbone: Backbone,
    encodings: Sequence[Encoding],
    *,
    depth: int | None,
    max_bytes: int = MAX_TRUNK_BYTES,
) -> TrunkActivations | None:
    """Return the activations of all encodings below layer `depth`, if there is a trunk to keep.

    None where the first layer or the embeddings are trained, or where the activations would take
    more than `max_bytes`.
    """
    distinct = sorted(dict.fromkeys(encodings), key=lambda encoding: encoding.num_tokens)
    num_tokens = sum(encoding.num_tokens for encoding in distinct)
    num_bytes = num_tokens * backbone.config.hidden_width * backbone.dtype.itemsize
    if not depth or num_bytes > max_bytes:
        return None
    hidden = dict[Encoding, Float[Tensor, "tokens width"]]()
    # Not inference mode: its tensors may not take part in what is differentiated later.
    with torch.no_grad():
        for start in range(0, len(distinct), BATCH_SIZE):
            chunk = distinct[start : start + BATCH_SIZE]
            hidden |= run_trunk(backbone, chunk, depth=depth).hidden
    return TrunkActivations(depth=depth, hidden=hidden)
