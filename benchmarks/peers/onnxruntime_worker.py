"""onnxruntime: dedicated models of equal size, in float32 and in 8-bit integers.

`worker.py` starts this program in its own environment, with a folder that holds a job. The program
exports transformers' encoder with the weights of one task and its linear head, and runs it once for
each task. The integers are those of onnxruntime's users: dynamic, with a scale for each channel.
"""
# pyrefly: ignore-errors
# The libraries of this process are not installed where the project is checked.

import json
import sys
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from onnx_export import export
from onnxruntime_models import session_of
from protocol import serve
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel


class Task(nn.Module):
    """The model of one task, which gives the logits [1, labels] of one text."""

    def __init__(self, encoder: BertModel, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.encoder, self.weight, self.bias = encoder, weight, bias

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids).last_hidden_state
        return functional.linear(hidden[:, 0], self.weight, self.bias)


def main() -> None:
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(job["num_threads"])
    tensors = load_file(folder / "tensors.safetensors")
    encoder = BertModel.from_pretrained(job["backbone"], add_pooling_layer=False)
    head = tensors.pop("head.weight"), tensors.pop("head.bias")
    # The task's own weights take the place of the backbone's.
    encoder.load_state_dict(tensors, strict=False)
    export(Task(encoder, *head), folder)
    sessions = {
        name: session_of(folder / file, job["num_threads"])
        for name, file in (("fp32", "model.onnx"), ("int8", "rounded.onnx"))
    }
    serve(
        {
            f"onnxruntime.{name}.{length}": repeated(session, ids, job["times"])
            for name, session in sessions.items()
            for length, ids in job["texts"].items()
        }
    )


def repeated(
    session: onnxruntime.InferenceSession, token_ids: list[int], times: int
) -> Callable[[], Tensor]:
    """Return a run of `times` forwards, which takes as long as `times` models of equal size."""
    ids = torch.tensor([token_ids]).numpy()

    def run() -> Tensor:
        for _ in range(times):
            (logits,) = session.run(None, {"input_ids": ids})
        return torch.from_numpy(logits)

    return run


if __name__ == "__main__":
    main()
