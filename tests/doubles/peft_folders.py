"""Adapters as peft itself builds and saves them, on tiny backbones."""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import PeftConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from doubles.backbones import Family, encoded, save_tiny_backbone
from doubles.checkpoints import published_logits
from doubles.published import AUTO_CLASSES
from doubles.published_names import PEFT_TASKS
from nunatak_model import Backbone, Branch, Row, forward, load_backbone

NUM_LAYERS = 3
CLASSES = {task: AUTO_CLASSES[kind] for kind, task in PEFT_TASKS.items()}
ENCODINGS = [encoded((2, *range(20, 20 + length), 3)) for length in (1, 7, 30)]


class PeftBase:
    """A tiny base model on disk, also loaded as our backbone."""

    def __init__(self, folder: Path, family: Family, *, num_layers: int = NUM_LAYERS) -> None:
        self.folder = save_tiny_backbone(folder, family=family, num_layers=num_layers)
        self.backbone: Backbone = load_backbone(folder)

    @classmethod
    def of(cls, folder: Path) -> "PeftBase":
        """A base model that is on disk already."""
        base = cls.__new__(cls)
        base.folder, base.backbone = folder, load_backbone(folder)
        return base

    def model(self, task_type: str, num_labels: int) -> PreTrainedModel:
        return deepcopy(_read(self.folder, task_type, num_labels))

    def train(self, config: PeftConfig, *, num_labels: int, seed: int = 0) -> PeftModel:
        """An adapted model with random weights wherever training would have changed them."""
        model = get_peft_model(self.model(str(config.task_type), num_labels), config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
        return model.eval()

    def load(self, folder: Path, task_type: str, num_labels: int) -> PeftModel:
        return PeftModel.from_pretrained(self.model(task_type, num_labels), str(folder)).eval()


@cache
def _read(folder: Path, task_type: str, num_labels: int) -> PreTrainedModel:
    """A model of a folder, whose reading takes several times as long as a copy in memory."""
    return CLASSES[task_type].from_pretrained(folder, num_labels=num_labels).eval()


def save(model: PeftModel, folder: Path, *, meaning: Mapping[str, object]) -> Path:
    """Save an adapter as peft does, with a `config.json` that names the labels of its logits."""
    # No import reads the card of a model, whose text takes longer than all of its weights.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeftModel, "create_or_update_model_card", Mock())
        model.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(meaning))
    return folder


def difference(branch: Branch, backbone: Backbone, model: nn.Module) -> float:
    """The largest difference of a logit of a task and of a model of peft."""
    with torch.inference_mode():
        answers = forward(backbone, [Row(encoding=it, branch=branch) for it in ENCODINGS])
    expected = [published_logits(model, it) for it in ENCODINGS]
    return max((ours - it).abs().max().item() for ours, it in zip(answers, expected, strict=True))


def id2label(num_labels: int) -> dict[str, object]:
    return {"id2label": {str(index): f"label {index}" for index in range(num_labels)}}
