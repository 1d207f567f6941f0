"""Exports models from torch to onnxruntime.

The program writes `model.onnx`, which reads one text of any length, into folders of
transformers. `rounded.onnx` is the same model in 8-bit integers, as users of onnxruntime make them:
dynamic, with a scale for each channel.
"""
# pyrefly: ignore-errors

import sys
import warnings
from pathlib import Path

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification


class Logits(nn.Module):
    """A model that reads token ids alone and returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids).logits


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        if not (folder / "rounded.onnx").exists():
            export(Logits(AutoModelForSequenceClassification.from_pretrained(folder)), folder)


def export(model: nn.Module, folder: Path) -> None:
    """Write both forms of a model from token ids to logits."""
    half_made = folder / "half.onnx"
    with warnings.catch_warnings():
        # Tracing warns about Python branches. The answers are checked before every race.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (torch.arange(40).unsqueeze(0) + 1000,),
            str(half_made),
            dynamo=False,
            input_names=["input_ids"],
            output_names=["logits"],
            dynamic_axes={"input_ids": {1: "length"}},
        )
    exact = half_made.rename(folder / "model.onnx")
    quantize_dynamic(exact, half_made, per_channel=True, weight_type=QuantType.QInt8)
    half_made.rename(folder / "rounded.onnx")


if __name__ == "__main__":
    main()
