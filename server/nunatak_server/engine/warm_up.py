"""The rows that a server computes before it is ready, which prove that the process can compute."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    build_branch,
    convert_branch,
    default_head,
    embedding_branch,
    initial_parameters,
)
from nunatak_model.layer import OwnLayer
from nunatak_server.scheduler import rows

WARM_UP_TEXT = "ready " * 128
WARM_UP_METHODS: tuple[Method, ...] = (
    HeadOnly(),
    Lora(rank=8, alpha=8.0, targets=QUERY_AND_VALUE),
    Bottleneck(size=8),
    TopK(num_layers=1),
)
"""The methods of the mixed batch that loads the kernels of a CUDA device; of each, two tasks."""
WARM_UP_TOKENS = (8, 128, 12, 96)
"""The warm-up rows have different sizes, so that the time model knows a batch's fixed time."""


def warm_up_branch(backbone: Backbone) -> Branch:
    """Return a branch whose rows run every layer in memory, for meaningless outputs."""
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


def warm_up_tasks(backbone: Backbone) -> list[Branch]:
    """Return two random tasks of each method, whose batch runs all kernels of a CUDA device.

    There are none without fast kernels, nor if layers that the tasks need are not in memory.
    """
    config = backbone.config
    if not backbone.ops.fast_kernels() or len(backbone.layers) < config.num_layers:
        return []
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2)
    generator, tasks = torch.Generator().manual_seed(0), list[Branch]()
    for method in (*WARM_UP_METHODS, *WARM_UP_METHODS):
        spec = BranchSpec(method=method, head=head)
        parameters = initial_parameters(spec, backbone, generator=generator)
        tasks.append(convert_branch(build_branch(spec, config, parameters), backbone))
    return tasks


def warm_up_batches(
    backbone: Backbone, tasks: Sequence[Branch], *, known: rows.RowBackbone
) -> Iterator[list[rows.PendingRow]]:
    batches = [(WARM_UP_TOKENS[0], tasks)] if tasks else []
    batches += [(num_tokens, [warm_up_branch(backbone)]) for num_tokens in WARM_UP_TOKENS]
    for num_tokens, branches in batches:
        max_length = min(num_tokens, backbone.config.max_tokens)
        (encoding,) = backbone.tokenizer.encode([WARM_UP_TEXT], max_length=max_length)
        spec = rows.row_spec(
            encoding,
            known.num_layers,
            backbone=known,
            group=-1,
            caller=rows.ANONYMOUS,
            priority=rows.Priority.NORMAL,
        )
        yield [
            rows.pending_row(spec, task="warm-up", version=0, branch=it, deadline=math.inf, now=0.0)
            for it in branches
        ]
