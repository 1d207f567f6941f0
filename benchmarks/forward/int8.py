"""The backbone in 8-bit integers, compared with itself in floating point.

The benchmark runs 32 texts of log-normal lengths for one head, for 32 LoRA tasks and for four tasks
with two own layers. The backbones are MiniLM, and BERT base's shape with random weights and half as
many texts. All number formats run in turns. So do the four products of a layer of BERT base alone,
with their activation.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.forward.ragged import NUM_ROWS
from benchmarks.harness.makers import LORA
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import clock_name, in_turns, ratios, require_one_thread
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import (
    dtypes,
    lognormal_lengths,
    mixed_run,
    random_encodings,
    random_tasks,
    run_products,
    served_backbone,
    served_integers,
    states_of_layers,
)
from nunatak_contract.enums import Activation
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import DEFAULT_BACKBONE, INT8_SUFFIX, load_backbone, quantize_backbone
from nunatak_model.ops import native
from nunatak_model.weights import Linear

INT8 = "int8"
LEVELS = ("portable", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx")
"""The levels of the native operators, by number."""
LAYER_TOKENS = {32: ">= 2.9", 256: ">= 3.2", 1024: ">= 3.3"}
"""Numbers of tokens, and the goal of the speed-up at each."""
MIXES: dict[str, Sequence[Method]] = {
    "head": [HeadOnly()],
    "lora32": [LORA] * NUM_ROWS,
    "top2": [TopK(num_layers=2)] * 4,
}
"""The methods of the tasks that share the texts."""


def main() -> None:
    parser = figures_parser(__doc__, rounds=11)
    parser.add_argument(
        "--part",
        choices=("layer", "levels", "minilm", "bert_base", "bytes"),
        help="`layer` and `levels`, on one thread; absent: the others",
    )
    options, sheet = open_sheet(parser)
    if options.part in {None, "minilm"}:
        measure(sheet, "minilm", DEFAULT_BACKBONE, NUM_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        bert = backbone_folder(Shape.BERT_BASE, Path(folder))
        if options.part in {"layer", "levels"}:
            require_one_thread(parser)
            by_part = {"layer": measure_layer, "levels": measure_levels}
            by_part[options.part](sheet, str(bert))
        if options.part in {None, "bert_base"}:
            measure(sheet, "bert_base", str(bert), NUM_ROWS // 2)
        if options.part in {None, "bytes"}:
            measure_bytes(sheet, {"minilm": DEFAULT_BACKBONE, "bert_base": str(bert)})


def measure_layer(sheet: Sheet, source: str) -> None:
    """Record the speed-up of a layer's products over those of fp32, by the number of tokens."""
    backbones = {
        "fp32": served_backbone(source, dtype=torch.float32),
        INT8: served_integers(source),
    }
    for num_tokens, goal in LAYER_TOKENS.items():
        hidden = torch.randn(num_tokens, backbones[INT8].config.hidden_width)
        runs = {name: partial(run_products, it, hidden) for name, it in backbones.items()}
        times = in_turns(runs, sheet.rounds, 9)
        sheet.record(
            f"forward.int8.layer.speedup.t{num_tokens}",
            ratios(times, "fp32", INT8),
            unit=f"times faster than the products of fp32, {clock_name()}",
            goal=goal,
        )


def measure_levels(sheet: Sheet, source: str) -> None:
    """Record the same for bfloat16, for torch's product of integers and for each level of the CPU.

    On one thread times are CPU time, on several threads wall time (`seconds`). With
    `ONEDNN_MAX_CPU_ISA=AVX2`, torch multiplies as on a CPU that has no more, and so do we.
    """
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").lower()
    cpu, threads = f"{isa}-cpu." if isa else "", torch.get_num_threads()
    last = LEVELS.index(isa) if isa else len(LEVELS)
    backbones = {name: served_backbone(source, dtype=dtype) for name, dtype in dtypes().items()}
    integers = served_integers(source)
    forms = {
        **{name: partial(run_products, it) for name, it in backbones.items()},
        "int8.torch": partial(run_products, load_backbone(f"{source}{INT8_SUFFIX}")),
        **{
            f"int8.{LEVELS[level]}": partial(run_products, integers, apply=partial(at_level, level))
            for level in torch.ops.nunatak_ops.levels()
            if level <= last
        },
    }
    for num_tokens in LAYER_TOKENS:
        hidden = torch.randn(num_tokens, integers.config.hidden_width)
        runs = {name: partial(run, hidden) for name, run in forms.items()}
        times = in_turns(runs, sheet.rounds)
        for name in forms.keys() - {"fp32"}:
            sheet.record(
                f"forward.int8.layer.{cpu}{name}.threads{threads}.t{num_tokens}",
                ratios(times, "fp32", name),
                unit=f"times faster than the products of fp32, {clock_name()}",
            )


def at_level(
    level: int, x: Tensor, linear: Linear, *, activation: Activation | None = None
) -> Tensor:
    """Run a map of packed integers at a level of the CPU."""
    biases = [] if linear.bias is None else [linear.bias]
    number = native.ACTIVATIONS.index(activation)
    return torch.ops.nunatak_ops.integer_linear(
        x, [linear.weight], [linear.scale], biases, [len(x)], number, level
    )


def measure(sheet: Sheet, shape: str, source: str, num_texts: int) -> None:
    """Record the speed-up of integers over each floating-point format."""
    backbones = {name: served_backbone(source, dtype=dtype) for name, dtype in dtypes().items()}
    backbones[INT8] = served_integers(source)
    vocabulary = backbones[INT8].config.vocab_size
    lengths = lognormal_lengths(num_texts)
    encodings = random_encodings(lengths, vocabulary=vocabulary)
    states = states_of_layers(backbones[INT8], lengths)
    for mix, methods in MIXES.items():
        runs: dict[str, Callable[[], object]] = {
            name: mixed_run(it, encodings, random_tasks(it, methods))
            for name, it in backbones.items()
        }
        runs["products"] = partial(run_products, backbones[INT8], *states)
        times = in_turns(runs, sheet.rounds)
        if shape == "minilm" and mix == "lora32":
            sheet.record(
                "forward.ragged.ceiling.int8",
                ratios(times, "products", INT8),
                unit=f"of the speed of its products, {clock_name()}",
                goal=">= 0.70",
            )
        for name in backbones.keys() - {INT8}:
            sheet.record(
                f"forward.int8.{shape}.{mix}.vs_{name}",
                ratios(times, name, INT8),
                unit=f"times faster than {name}, {clock_name()}",
            )


def measure_bytes(sheet: Sheet, sources: Mapping[str, str]) -> None:
    for shape, source in sources.items():
        exact = load_backbone(source)
        share = quantize_backbone(exact).num_bytes / exact.num_bytes
        unit = "of the backbone's bytes in fp32"
        sheet.record(f"forward.int8.{shape}.bytes", [share], unit=unit)


if __name__ == "__main__":
    main()
