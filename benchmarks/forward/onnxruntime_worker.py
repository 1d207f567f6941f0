"""onnxruntime: dedicated models of equal size, in float32 and in 8-bit integers.

`worker.py` starts this program in its own environment, with a folder that holds a job. The program
exports transformers' encoder with the weights of one task and its linear head, and runs it once for
each task. The integers are those of onnxruntime's users: dynamic, with a scale for each channel.
"""
# pyrefly: ignore-errors
# The libraries of this process are not installed where the project is checked.

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from protocol import serve
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel


class Task(nn.Module):
    """The model of one task, which gives the logits [1, labels] of one text."""

    def __init__(self, encoder: BertModel, weight: Tensor, bias: Tensor) -> None:
        """Keep the encoder and the head."""
        super().__init__()
        self.encoder, self.weight, self.bias = encoder, weight, bias

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of token ids [1, length]."""
        hidden = self.encoder(input_ids=input_ids).last_hidden_state
        return functional.linear(hidden[:, 0], self.weight, self.bias)


def main() -> None:
    """Export and quantize the model of the job, and serve its cases."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(job["num_threads"])
    tensors = load_file(folder / "tensors.safetensors")
    exact, rounded = folder / "exact.onnx", folder / "rounded.onnx"
    export(job["backbone"], tensors, exact)
    quantize_dynamic(exact, rounded, per_channel=True, weight_type=QuantType.QInt8)
    sessions = {
        name: start(file, job["num_threads"]) for name, file in (("fp32", exact), ("int8", rounded))
    }
    serve(
        {
            f"onnxruntime.{name}.{length}": repeated(session, ids, job["times"])
            for name, session in sessions.items()
            for length, ids in job["texts"].items()
        }
    )


def export(backbone: str, tensors: dict[str, Tensor], file: Path) -> None:
    """Write the model, with the task's own weights in place of the backbone's."""
    encoder = BertModel.from_pretrained(backbone, add_pooling_layer=False)
    weight, bias = tensors.pop("head.weight"), tensors.pop("head.bias")
    encoder.load_state_dict(tensors, strict=False)
    with warnings.catch_warnings():
        # Tracing warns about Python branches. The answers are checked before every race.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Task(encoder, weight, bias).eval(),
            (torch.arange(40).unsqueeze(0) + 1000,),
            str(file),
            dynamo=False,
            input_names=["input_ids"],
            output_names=["logits"],
            dynamic_axes={"input_ids": {1: "length"}},
        )


def start(file: Path, num_threads: int) -> onnxruntime.InferenceSession:
    """Return a session with every optimization; its threads do not spin between runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


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
