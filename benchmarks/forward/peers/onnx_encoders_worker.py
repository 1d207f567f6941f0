"""onnxruntime: the encoder of any architecture with one linear head, over batches of texts.

`worker.py` starts this program in its own environment. The program exports transformers' encoder
with axes of free size. The head reads the mean of the tokens.
"""
# pyright: basic, reportMissingImports=false
# The libraries of this process are not installed where the project is checked.

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from onnxruntime_worker import Run, start
from protocol import serve
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

Batch = tuple[list[int], dict[str, np.ndarray]]
"""Positions of texts, and the inputs of these texts."""


class Task(nn.Module):
    """The encoder with a head, which returns logits [rows, labels]."""

    def __init__(self, encoder: nn.Module, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.encoder, self.weight, self.bias = encoder, weight, bias

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of token ids and mask [rows, length]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return functional.linear((hidden * mask).sum(1) / mask.sum(1), self.weight, self.bias)


def main() -> None:
    """Export the encoder of the job, and serve its batches."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    head = load_file(folder / "tensors.safetensors")
    encoder = AutoModel.from_pretrained(job["backbone"], attn_implementation="eager")
    task = Task(encoder, head["head.weight"], head["head.bias"]).eval()
    made = {
        f"onnxruntime.{name}": [padded(job["texts"], part) for part in parts]
        for name, parts in job["batches"].items()
    }
    (_, example), *_ = next(iter(made.values()))
    file = folder / "encoder.onnx"
    export(task, example, file)
    session = start(file, job["num_threads"])
    runs = {name: in_turn(session, batches) for name, batches in made.items()}
    serve(runs, {name: lambda run=run: run().tolist() for name, run in runs.items()})


def padded(texts: list[list[int]], indices: list[int]) -> Batch:
    """Return the texts at `indices`, padded to the longest of these texts."""
    longest = max(len(texts[it]) for it in indices)
    ids = np.zeros((len(indices), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, index in enumerate(indices):
        ids[row, : len(texts[index])] = texts[index]
        mask[row, : len(texts[index])] = 1
    return indices, {"input_ids": ids, "attention_mask": mask}


def export(task: Task, example: dict[str, np.ndarray], file: Path) -> None:
    """Write the model for any number and length of texts."""
    axes = {0: "rows", 1: "length"}
    with warnings.catch_warnings(), torch.inference_mode():
        # Tracing warns about Python branches. The answers are checked before every race.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            task,
            tuple(torch.from_numpy(it) for it in example.values()),
            str(file),
            dynamo=False,
            input_names=[*example],
            output_names=["logits"],
            dynamic_axes=dict.fromkeys(example, axes),
        )


def in_turn(session: object, batches: list[Batch]) -> Run:
    """Return a run of all batches, one after another, with the logits in the texts' order."""
    order = np.argsort([index for indices, _ in batches for index in indices])

    def run() -> np.ndarray:
        return np.concatenate([session.run(None, inputs)[0] for _, inputs in batches])[order]  # type: ignore[attr-defined]

    return run


if __name__ == "__main__":
    main()
