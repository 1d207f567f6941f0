"""onnxruntime: one dedicated model per task, in float32 and with dynamic int8 quantization.

`worker.py` starts this program in its own environment. The program exports transformers' encoder
and one linear head as one model. onnxruntime fuses operations when it loads the model.
"""
# pyright: basic, reportMissingImports=false
# The libraries of this process are not installed where the project is checked.

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from protocol import serve
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel

Run = Callable[[], np.ndarray]


class Task(nn.Module):
    """The model of one task, which returns logits [1, labels] of one text."""

    def __init__(self, encoder: BertModel, weight: Tensor, bias: Tensor) -> None:
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
    ids = torch.tensor([job["text"]])
    files = {"fp32": folder / "fp32.onnx", "int8": folder / "int8.onnx"}
    export(job["backbone"], load_file(folder / "tensors.safetensors"), ids, files["fp32"])
    quantize_dynamic(files["fp32"], files["int8"], weight_type=QuantType.QInt8)
    runs = {
        f"onnxruntime.{numbers}": repeated(
            start(file, job["num_threads"]), ids.numpy(), job["times"]
        )
        for numbers, file in files.items()
    }
    serve(runs, {case: lambda run=run: run().tolist() for case, run in runs.items()})


def export(backbone: str, tensors: dict[str, Tensor], ids: Tensor, file: Path) -> None:
    """Write the model, with the task's own weights in place of the backbone's weights."""
    encoder = BertModel.from_pretrained(backbone, add_pooling_layer=False)
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    encoder.load_state_dict(weights, strict=False)
    task = Task(encoder, tensors["head.weight"], tensors["head.bias"]).eval()
    with warnings.catch_warnings():
        # Tracing warns about Python branches. The answers are checked before every race.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            task,
            (ids,),
            str(file),
            dynamo=False,
            input_names=["input_ids"],
            output_names=["logits"],
        )


def start(file: Path, num_threads: int) -> onnxruntime.InferenceSession:
    """Return a session with every optimization; its threads do not spin between runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def repeated(session: onnxruntime.InferenceSession, ids: np.ndarray, times: int) -> Run:
    """Return a run of `times` forwards, which takes as long as `times` models of equal size."""

    def run() -> np.ndarray:
        for _ in range(times):
            (logits,) = session.run(None, {"input_ids": ids})
        return logits

    return run


if __name__ == "__main__":
    main()
