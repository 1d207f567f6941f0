"""Fan-out: one text asked of many tasks, in one mixed forward and by one dedicated model per task.

Shape of BERT base, random weights: speed does not depend on what they are. The dedicated side is
transformers' own BertForSequenceClassification, once per task. Both sides run in turns.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from recording import record
from transformers import BertConfig, BertForSequenceClassification

from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    Encoding,
    HeadSpec,
    Pooling,
    Row,
    TopK,
    build_branch,
    convert_branch,
    forward,
    initial_parameters,
    load_backbone,
)

NUM_LAYERS, TOP_LAYERS, NUM_TOKENS = 12, 3, 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOKENIZER = '{"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}'


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=8)
    rounds, num_tasks = parser.parse_args().rounds, parser.parse_args().tasks
    model = BertForSequenceClassification(BertConfig()).eval()
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder))
        for name, dtype in DTYPES.items():
            if dtype is torch.bfloat16 and not has_bfloat16():
                print("this processor has no bfloat16 products; bf16 is left out")
                continue
            backbone = load_backbone(folder, dtype=dtype)
            model.to(dtype=dtype)  # pyright: ignore[reportUnknownMemberType, reportCallIssue]
            ratios = fan_out_ratios(model, backbone, num_tasks, rounds)
            figure = record(
                f"forward.fanout.t{num_tasks}.k{TOP_LAYERS}.{name}",
                ratios,
                unit="times faster than dedicated forwards",
                goal=">= 2.7",
                command=f"python benchmarks/fanout.py --tasks {num_tasks} --rounds {rounds}",
            )
            bound = num_tasks * NUM_LAYERS / (NUM_LAYERS - TOP_LAYERS + num_tasks * TOP_LAYERS)
            print(
                f"{name}: {figure.value:.2f} times faster (from {figure.low:.2f} to "
                f"{figure.high:.2f}; bound by layers {bound:.2f})"
            )


def fan_out_ratios(
    model: BertForSequenceClassification, backbone: Backbone, num_tasks: int, rounds: int
) -> list[float]:
    """Dedicated time over mixed time, once per round."""
    encoding = Encoding(token_ids=tuple(range(5, 5 + NUM_TOKENS)), type_ids=(0,) * NUM_TOKENS)
    rows = [Row(encoding=encoding, branch=branch_of(backbone, seed)) for seed in range(num_tasks)]
    ids = torch.tensor([encoding.token_ids])
    mask = torch.ones_like(ids)

    def dedicated() -> None:
        for _ in range(num_tasks):
            model(input_ids=ids, attention_mask=mask)

    def mixed() -> None:
        forward(backbone, rows)

    with torch.inference_mode():
        for warm in (dedicated, mixed):
            warm()
        return [seconds(dedicated) / seconds(mixed) for _ in range(rounds)]


def branch_of(backbone: Backbone, seed: int) -> Branch:
    """A task of the top layers at the backbone's dtype."""
    head = HeadSpec(num_labels=2, pooling=Pooling.FIRST, dense=True)
    spec = BranchSpec(method=TopK(num_layers=TOP_LAYERS), head=head)
    generator = torch.Generator().manual_seed(seed)
    branch = build_branch(
        spec, backbone.config, initial_parameters(spec, backbone, generator=generator)
    )
    return convert_branch(branch, backbone)


def save(model: BertForSequenceClassification, folder: Path) -> None:
    """Write a checkpoint that `load_backbone` reads; its tokenizer is never used."""
    model.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType] - untyped options
    (folder / "tokenizer.json").write_text(TOKENIZER)


def seconds(run: Callable[[], None], repeats: int = 3) -> float:
    """Median wall time of a few runs."""
    samples = list[float]()
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; without that it is slower than float32."""
    return torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public name


if __name__ == "__main__":
    main()
