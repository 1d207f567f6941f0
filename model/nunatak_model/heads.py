"""Heads: pooled token vectors to logits.

The classification heads of transformers are one family here: pool the token vectors (first token
or mean), optionally a dense layer with tanh (BERT's pooler, RoBERTa's `classifier.dense`), then
the output layer.

Axes: rows = texts of one task, width = hidden width, labels = labels of the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig, Pooling
from nunatak_model.weights import Linear, Shapes, linear_from, linear_shapes

INITIAL_DEVIATION = 0.02
"""`initializer_range` of BERT and RoBERTa."""


class HeadKind(StrEnum):
    """What the head predicts."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The shape of a head."""

    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
    num_labels: int
    pooling: Pooling
    dense: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The parameters of one head."""

    pooling: Pooling
    dense: Linear | None
    output: Linear


def head_shapes(spec: HeadSpec, config: BackboneConfig) -> Shapes:
    """The exact set of tensors of a head."""
    width = config.hidden_width
    dense = linear_shapes("head.dense", out=width, into=width) if spec.dense else {}
    return {**dense, **linear_shapes("head.output", out=spec.num_labels, into=width)}


def initial_head(
    spec: HeadSpec, backbone: Backbone, generator: torch.Generator
) -> dict[str, Tensor]:
    """Random output layer; the dense layer starts from the checkpoint's pooler if there is one."""
    parameters = {
        name: (
            torch.randn(shape, generator=generator) * INITIAL_DEVIATION
            if name.endswith(".weight")
            else torch.zeros(shape)
        ).to(backbone.device)
        for name, shape in head_shapes(spec, backbone.config).items()
    }
    if spec.dense and backbone.pooler is not None:
        parameters["head.dense.weight"] = backbone.pooler.weight.to(torch.float32, copy=True)
        parameters["head.dense.bias"] = backbone.pooler.bias.to(torch.float32, copy=True)
    return parameters


def head_from(spec: HeadSpec, parameters: Mapping[str, Tensor]) -> Head:
    """Pick a head out of named tensors."""
    return Head(
        pooling=spec.pooling,
        dense=linear_from(parameters, "head.dense") if spec.dense else None,
        output=linear_from(parameters, "head.output"),
    )


def apply_head(
    pooled: Float[Tensor, "rows width"], head: Head, *, dropout: float
) -> Float[Tensor, "rows labels"]:
    """Logits of the rows of one task, in float32."""
    features = functional.dropout(pooled, dropout, training=dropout > 0.0)
    if head.dense is not None:
        features = torch.tanh(functional.linear(features, head.dense.weight, head.dense.bias))
        features = functional.dropout(features, dropout, training=dropout > 0.0)
    return functional.linear(features, head.output.weight, head.output.bias).float()
