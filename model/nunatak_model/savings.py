"""Parameters that sharing saves, and the speed of this CPU in each number format.

Names of CPUs do not tell: bfloat16 without AVX512-BF16 or AMX, and integers without VNNI, may be
slower than float32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import torch

from nunatak_model.architectures import encoder_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.heads import HeadSpec, head_shapes
from nunatak_model.ops import native
from nunatak_model.ops.int8 import packed_integers, quantized
from nunatak_model.ops.linear import apply_linear, packed
from nunatak_model.weights import Shapes, linear_from


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Parameters of one full model by part, as in the paper's table 1."""

    embedding: float
    per_layer: float
    output: float
    num_layers: int

    @property
    def total(self) -> float:
        return self.embedding + self.num_layers * self.per_layer + self.output


def parameters_saved(size: ModelSize, *, num_tasks: int, num_frozen: int) -> float:
    """Share of parameters saved by `num_tasks` tasks that share their lowest `num_frozen` layers.

    `1 - (embedding + N * per_layer + T * ((L - N) * per_layer + output)) / (T * total)`
    """
    if num_tasks < 1 or not 0 <= num_frozen <= size.num_layers:
        raise ValueError(
            f"expected at least one task and 0 to {size.num_layers} frozen layers, "
            f"got {num_tasks} tasks and {num_frozen} layers"
        )
    shared = size.embedding + num_frozen * size.per_layer
    own = (size.num_layers - num_frozen) * size.per_layer + size.output
    return 1.0 - (shared + num_tasks * own) / (num_tasks * size.total)


def encoder_parameters(config: BackboneConfig) -> int:
    return _count(encoder_shapes(config))


def dedicated_parameters(config: BackboneConfig, head: HeadSpec) -> int:
    """Parameters of a dedicated full model with this head."""
    return encoder_parameters(config) + _count(head_shapes(head, config))


def model_size(config: BackboneConfig, head: HeadSpec) -> ModelSize:
    """Size of a full model by part, from the shapes of its modules alone."""
    encoder = encoder_shapes(config)
    embedding = _count({n: s for n, s in encoder.items() if n.startswith("embeddings.")})
    return ModelSize(
        embedding=embedding,
        per_layer=(_count(encoder) - embedding) / config.num_layers,
        output=_count(head_shapes(head, config)),
        num_layers=config.num_layers,
    )


def _count(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


INT8, FLOAT32, BFLOAT16 = "int8", "float32", "bfloat16"
NUM_TOKENS, NUM_ROUNDS = 32, 5


def number_format(backbone: Backbone) -> str:
    """The number format in which the backbone's layers multiply."""
    return INT8 if backbone.is_quantized else str(backbone.dtype).removeprefix("torch.")


def with_speeds(backbone: Backbone, clock: Callable[[], float] = perf_counter) -> Backbone:
    """The same backbone with its `speeds`: of 32 tokens times its widest map, the best of 5 runs.

    Only a CPU is measured. The other formats have the layout that they would be served in.
    """
    if backbone.device.type != "cpu":
        return backbone
    out, into = backbone.layers[0].feedforward_in.widths
    weight = torch.randn(out, into)
    forms = {
        FLOAT32: {"layers.0.weight": weight},
        BFLOAT16: {"layers.0.weight": weight.bfloat16()},
        INT8: quantized({"layers.0.weight": weight}),
    }
    if backbone.is_packed:
        integers = backbone.ops.integers
        if not backbone.is_quantized and native.has_native_operators():
            integers = packed_integers
        forms = {name: packed(it, integers) for name, it in forms.items()}
    x = torch.randn(NUM_TOKENS, into)
    best = dict.fromkeys(forms, float("inf"))
    runs = {
        name: partial(
            apply_linear, x.bfloat16() if name == BFLOAT16 else x, linear_from(it, "layers.0")
        )
        for name, it in forms.items()
    }
    with torch.inference_mode():
        for _ in range(1 + NUM_ROUNDS):
            for name, run in runs.items():
                began = clock()
                run()
                best[name] = min(best[name], clock() - began)
    return replace(backbone, speeds={name: best[FLOAT32] / it for name, it in best.items()})
