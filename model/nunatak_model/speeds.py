"""How fast this CPU multiplies in each number format, measured on one product of a backbone.

Names of CPUs do not tell: bfloat16 without AVX512-BF16 or AMX, and integers without VNNI, may be
slower than float32.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch

from nunatak_model.backbone import Backbone
from nunatak_model.ops import native
from nunatak_model.ops.int8 import packed_integers, quantized
from nunatak_model.ops.linear import apply_linear, packed
from nunatak_model.weights import linear_from

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
