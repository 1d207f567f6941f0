"""Writes AdapterHub folders with `adapters` itself, and the logits that `adapters` gives for them.

Runs where `adapters` 1.3.0 with its transformers 4.57 is installed, which cannot share an
environment with this project. `regenerate` next to this file makes that environment and runs this
program.
"""

# pyrefly: ignore-errors
# `adapters` is not installed where the project is checked.

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
from adapters import AutoAdapterModel, DoubleSeqBnConfig, SeqBnConfig
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

TOKENS = [[2, 20, 3], [2, *range(10, 30), 3], [2, 7, 7, 60, 3]]
LABELS = {index: f"label {index}" for index in range(9)}

CASES: dict[str, dict[str, Any]] = {
    "bert-houlsby": {"adapter": DoubleSeqBnConfig(), "head": ("classification", {"num_labels": 3})},
    "bert-pfeiffer": {
        "adapter": SeqBnConfig(reduction_factor=8),
        "head": ("classification", {"num_labels": 2, "layers": 1}),
    },
    "bert-pfeiffer-sizes-by-layer": {
        "adapter": SeqBnConfig(reduction_factor={"0": 16, "default": 6}, non_linearity="gelu"),
        "head": ("tagging", {"num_labels": 5}),
    },
    "bert-houlsby-left-out": {
        "adapter": DoubleSeqBnConfig(leave_out=[0], non_linearity="tanh", reduction_factor=8),
        "head": ("qa", {}),
    },
    "bert-houlsby-multi-label": {
        "adapter": DoubleSeqBnConfig(reduction_factor=32, non_linearity="leakyrelu"),
        "head": ("classification", {"num_labels": 4, "layers": 1, "multilabel": True}),
    },
    "bert-pfeiffer-learned-scaling": {
        "adapter": SeqBnConfig(scaling="learned", non_linearity="gelu_new"),
        "head": ("classification", {"num_labels": 3, "layers": 1, "use_pooler": True}),
    },
    "bert-attention-alone": {
        "adapter": DoubleSeqBnConfig(output_adapter=False, scaling=0.5, residual_before_ln=False),
        "head": ("classification", {"num_labels": 1, "layers": 1}),
    },
    "bert-both-read-sums": {
        "adapter": DoubleSeqBnConfig(original_ln_before=True, scaling="channel"),
        "head": ("classification", {"num_labels": 3, "layers": 1}),
    },
    "bert-class-head": {"adapter": SeqBnConfig(), "class": AutoModelForSequenceClassification},
    "roberta-houlsby": {
        "adapter": DoubleSeqBnConfig(non_linearity="relu"),
        "head": ("classification", {"num_labels": 3}),
    },
    "roberta-pfeiffer": {"adapter": SeqBnConfig(), "head": ("tagging", {"num_labels": 4})},
    "roberta-class-head": {
        "adapter": DoubleSeqBnConfig(reduction_factor=8),
        "class": AutoModelForTokenClassification,
    },
}


def make(case: dict[str, Any], base: Path, folder: Path) -> list[Any]:
    """Save one adapter with its head; return its logits."""
    if "class" in case:
        model = case["class"].from_pretrained(base, num_labels=3)
        adapters.init(model)
    else:
        model = AutoAdapterModel.from_pretrained(base)
    model.add_adapter("tone", config=case["adapter"])
    if "head" in case:
        kind, settings = case["head"]
        names = {index: LABELS[index] for index in range(settings.get("num_labels", 2))}
        getattr(model, f"add_{kind}_head")("tone", id2label=names, **settings)
    model.set_active_adapters("tone")
    own = ("adapters.tone", "heads.tone", "classifier")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in own):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.eval()
    model.save_adapter(str(folder), "tone", with_head=True, use_safetensors=True)
    return [logits(model, tokens) for tokens in TOKENS]


def logits(model: torch.nn.Module, tokens: list[int]) -> list[Any]:
    """Return the logits of one text; the last axis has start and end scores of an answer."""
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([tokens]),
            token_type_ids=torch.zeros(1, len(tokens), dtype=torch.long),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        )
    if hasattr(output, "start_logits"):
        return torch.stack([output.start_logits[0], output.end_logits[0]], dim=-1).tolist()
    return output.logits[0].tolist()


def main() -> None:
    """Usage: make.py BASES FOLDER, where BASES holds the folders `bert` and `roberta`."""
    bases, target = map(Path, sys.argv[1:])
    expected = {
        name: make(case, bases / name.partition("-")[0], target / name)
        for name, case in CASES.items()
    }
    text = json.dumps({"tokens": TOKENS, "logits": expected})
    (target / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
