"""Heads: token vectors to logits.

There are two families of heads here, after transformers' heads. A sequence head pools the token
vectors (first token, last token or mean), optionally runs a dense block (BERT's pooler, RoBERTa's
`classifier.dense`, ModernBERT's `head`), then the output layer. Late pooling, as in EuroBERT,
takes the mean of the logits of all tokens. A token head runs on every token, mostly without a dense
block: one label per token (`...ForTokenClassification`), or a start and an end score (`qa_outputs`
of `...ForQuestionAnswering`).

Axes: tokens = packed tokens of the rows, rows = texts, width = hidden width, labels = outputs of
the task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation, HeadKind, HeadNorm, Pooling
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import TANH_BLOCK, DenseBlock
from nunatak_model import weights
from nunatak_model.architectures import architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.ops.device import to_device
from nunatak_model.ops.grouped import SlotGroups
from nunatak_model.ops.linear import activate, apply_linear, layer_norm
from nunatak_model.ops.rows import SumRows

INITIAL_DEVIATION = 0.02
"""`initializer_range` of BERT and RoBERTa."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The shape of a head; only sequence heads have a pooling."""

    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION
    num_labels: int
    pooling: Pooling | None = None
    dense: bool = False
    block: DenseBlock = TANH_BLOCK
    bias: bool = True
    padding_id: int | None = None
    """Only for pooling last: the padding token, which never counts as the last."""

    def check(self) -> None:
        wanted = self.kind.fixed_outputs
        if self.num_labels < 1 or wanted not in {None, self.num_labels}:
            outputs = wanted or "at least 1"
            problem = f"a {self.kind} head has {outputs} outputs, got {self.num_labels}"
        elif self.kind.reads_tokens and self.pooling is not None:
            problem = f"a {self.kind} head has no pooling, got {self.pooling}"
        elif not self.kind.reads_tokens and self.pooling is None:
            problem = f"a {self.kind} head needs a pooling out of {', '.join(Pooling)}"
        elif not self.dense and self.block != TANH_BLOCK:
            problem = f"a head without dense layer has no block, got {self.block}"
        elif self.padding_id is not None and self.pooling is not Pooling.LAST:
            problem = f"only pooling last has a padding_id, got pooling {self.pooling}"
        else:
            return
        raise NunatakError("invalid_head", problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The parameters of one head; without an output layer it returns its features."""

    pooling: Pooling | None
    padding_id: int | None
    dense: weights.Linear | None
    activation: Activation
    norm: weights.Norm | None
    norm_epsilon: float
    output: weights.Linear | None

    @property
    def scores_tokens(self) -> bool:
        """Late pooling takes the mean of the tokens' logits."""
        return self.pooling in {None, Pooling.LATE}

    @property
    def reads_one(self) -> bool:
        """Whether the head reads one token of a row, the first or the last."""
        return self.pooling in {Pooling.FIRST, Pooling.LAST}

    def place_in(self, token_ids: Sequence[int]) -> int:
        """The place in a row of the one token that the head reads."""
        is_last = self.pooling is Pooling.LAST
        return unpadded_length(token_ids, self.padding_id) - 1 if is_last else 0


def default_head(backbone: Backbone, *, kind: HeadKind, num_labels: int) -> HeadSpec:
    """The head that transformers' classes put on this checkpoint."""
    config, pooling = backbone.config, backbone.pooling
    return usual_head(config, kind=kind, num_labels=num_labels, pooling=pooling)


def usual_head(
    config: BackboneConfig, *, kind: HeadKind, num_labels: int, pooling: Pooling | None
) -> HeadSpec:
    """The head of transformers' class of this kind."""
    pooling = None if kind.reads_tokens else pooling
    block = architecture_of(config).dense_block(config, pooling)
    return HeadSpec(
        kind=kind,
        num_labels=num_labels,
        pooling=pooling,
        dense=block is not None,
        block=block or TANH_BLOCK,
        bias=kind.reads_tokens or config.has_score_bias,
        padding_id=config.padding_id
        if pooling is Pooling.LAST and config.padding_id >= 0
        else None,
    )


def head_shapes(spec: HeadSpec, config: BackboneConfig) -> weights.Shapes:
    spec.check()
    width = config.hidden_width
    shapes: weights.Shapes = {}
    if spec.dense:
        shapes |= weights.linear_shapes("head.dense", out=width, into=width, bias=spec.block.bias)
        if spec.block.norm is not HeadNorm.NONE:
            has_offset = spec.block.norm is HeadNorm.GAIN_AND_OFFSET
            shapes |= weights.norm_shapes("head.norm", width, bias=has_offset)
    output = weights.linear_shapes("head.output", out=spec.num_labels, into=width, bias=spec.bias)
    return {**shapes, **output}


def initial_head(
    spec: HeadSpec, backbone: Backbone, generator: torch.Generator
) -> dict[str, Tensor]:
    """A random output layer. The dense block starts from the checkpoint's block if there is one."""
    parameters = {
        name: _initial(name, shape, generator).to(backbone.device)
        for name, shape in head_shapes(spec, backbone.config).items()
    }
    for prefix, part in (("head.dense", backbone.pooler), ("head.norm", backbone.pooler_norm)):
        if part is None:
            continue
        for name, tensor in ((f"{prefix}.weight", part.weight), (f"{prefix}.bias", part.bias)):
            if name in parameters and tensor is not None:
                parameters[name] = tensor.to(torch.float32, copy=True)
    return parameters


def head_from(spec: HeadSpec, config: BackboneConfig, parameters: Mapping[str, Tensor]) -> Head:
    return Head(
        pooling=spec.pooling,
        padding_id=spec.padding_id,
        dense=weights.linear_from(parameters, "head.dense") if spec.dense else None,
        activation=spec.block.activation,
        norm=weights.norm_if_any(parameters, "head.norm"),
        norm_epsilon=config.layer_norm_epsilon,
        output=weights.linear_from(parameters, "head.output"),
    )


def with_labels(head: Head, num_labels: int) -> Head:
    output = head.output
    if output is None or len(output.weight) == num_labels:
        return head
    bias = None if output.bias is None else output.bias[:num_labels]
    return replace(head, output=replace(output, weight=output.weight[:num_labels], bias=bias))


def pool(
    hidden: Float[Tensor, "tokens width"],
    lengths: Sequence[int],
    pooling: Pooling,
    *,
    ends: Sequence[int],
    sum_rows: SumRows,
) -> Float[Tensor, "rows width"]:
    """One vector for each row; the rows lie packed one after another.

    `ends` is the number of tokens of each row up to the token that `LAST` reads.
    """
    begins = accumulate(lengths[:-1], initial=0)
    match pooling:
        case Pooling.FIRST:
            return hidden.index_select(0, to_device(list(begins), hidden.device))
        case Pooling.LAST:
            last = [begin + end - 1 for begin, end in zip(begins, ends, strict=True)]
            return hidden.index_select(0, to_device(last, hidden.device))
        case Pooling.MEAN | Pooling.LATE:
            sizes = to_device(lengths, hidden.device)
            # Summed in float32, because a bfloat16 sum of many vectors loses small values.
            sums = sum_rows(hidden.float(), sizes)
            return (sums / sizes.unsqueeze(1)).to(hidden.dtype)


def unpadded_length(token_ids: Sequence[int], padding_id: int | None) -> int:
    """Number of tokens up to the last that is not the padding token; at least 1.

    A text may itself end with it: in many decoders it is the token at the end of a text.
    """
    if padding_id is None:
        return len(token_ids)
    ends = range(len(token_ids), 1, -1)
    return next((end for end in ends if token_ids[end - 1] != padding_id), 1)


def apply_head(
    features: Float[Tensor, "vectors width"],
    head: Head,
    *,
    dropout: float,
    groups: SlotGroups | None = None,
) -> Float[Tensor, "vectors labels"]:
    """Logits in float32 of pooled vectors or token vectors; with `groups`, of stacked heads."""
    features = functional.dropout(features, dropout, training=dropout > 0.0)
    if head.dense is not None:
        features = apply_linear(features, head.dense, groups=groups)
        features = activate(features, head.activation)
        if head.norm is not None:
            features = layer_norm(features, head.norm, epsilon=head.norm_epsilon, groups=groups)
        features = functional.dropout(features, dropout, training=dropout > 0.0)
    if head.output is None:
        return features.float()
    return apply_linear(features, head.output, groups=groups).float()


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith(".bias"):
        return torch.zeros(shape, dtype=torch.float32)
    if name.startswith("head.norm."):
        return torch.ones(shape, dtype=torch.float32)
    return torch.randn(shape, generator=generator, dtype=torch.float32) * INITIAL_DEVIATION
