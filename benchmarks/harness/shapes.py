"""Backbones to measure on: the embedded one, and the shapes of larger encoders.

Neither memory nor speed depends on the values of the weights, so the larger shapes have random
weights. They read text with the embedded backbone's tokenizer, whose vocabulary fits into theirs.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModel, PreTrainedConfig

from benchmarks.harness.workload import minilm_folder

DEVIATION = 0.02
MINILM_IDS: Mapping[str, Any] = {
    "pad_token_id": 0, "cls_token_id": 101, "bos_token_id": 101, "sep_token_id": 102,
    "eos_token_id": 102,
}  # fmt: skip
"""Special tokens of the embedded backbone's tokenizer."""


class Shape(StrEnum):
    """The shape of a backbone; RoBERTa base is the backbone of the paper's table."""

    MINILM = "minilm"
    BERT_BASE = "bert_base"
    ROBERTA_BASE = "roberta_base"
    TINY = "tiny"
    """Almost no weights, so that the memory is the memory of the process itself."""
    TINY_ROBERTA = "tiny_roberta"
    """The same in the layout of RoBERTa, to try a benchmark out."""
    MODERNBERT = "modernbert"
    """mmBERT base: ModernBERT base with a vocabulary of 256,000, 307 million parameters."""
    TINY_MODERNBERT = "tiny_modernbert"
    """Almost no weights in the layout of ModernBERT, to try a benchmark out."""


_TINY: Mapping[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
_ROBERTA: Mapping[str, Any] = {
    "vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
}  # fmt: skip
CONFIGS: Mapping[Shape, tuple[str, Mapping[str, Any]]] = {
    Shape.BERT_BASE: ("bert", {}),
    Shape.TINY: ("bert", _TINY),
    Shape.ROBERTA_BASE: ("roberta", _ROBERTA),
    Shape.TINY_ROBERTA: ("roberta", {**_ROBERTA, **_TINY}),
    Shape.MODERNBERT: ("modernbert", {"vocab_size": 256_000, **MINILM_IDS}),
    Shape.TINY_MODERNBERT: ("modernbert", {**_TINY, "num_hidden_layers": 6, **MINILM_IDS}),
}
"""The architecture of each made shape, and what differs from its defaults."""


def backbone_folder(shape: Shape, root: Path) -> Path:
    """Return a backbone's folder in transformers' layout; make a missing one below `root`."""
    if shape is Shape.MINILM:
        return minilm_folder()
    folder = root / shape
    if not (folder / "config.json").exists():
        architecture, changes = CONFIGS[shape]
        _write(folder, AutoConfig.for_model(architecture, **changes))
    return folder


def _write(folder: Path, config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        empty = AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: _random(name, tensor.shape, generator) for name, tensor in empty.named_parameters()
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = (minilm_folder() / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    # Written last: if this file exists, all others exist.
    (folder / "config.json").write_text(json.dumps(config.to_dict()))


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if name.endswith(("LayerNorm.weight", "norm.weight")):
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) * DEVIATION
