"""Peers in this process: transformers' and peft's models with the parameters of our branches.

Both libraries run encoders without a pooler. A head is one linear map of the first token. Batches
are padded before the measurement, so no peer pays for the padding.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging

from benchmarks.harness.workload import Task, padded
from nunatak_contract.methods import Lora, TopK
from nunatak_model import Encoding

PARTS = {
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feedforward_in": "intermediate.dense",
    "feedforward_out": "output.dense",
    "output_norm": "output.LayerNorm",
}
TARGETS = {"query": "attention.self.query", "value": "attention.self.value"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Requests that run together, with their positions in `indices`."""

    indices: tuple[int, ...]
    inputs: Mapping[str, Tensor]
    tasks: list[str]
    head_weight: Tensor
    """[rows, labels, width]"""
    head_bias: Tensor
    """[rows, labels]"""

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply each row's own head to [rows, length, width]."""
        first = hidden[:, 0].unsqueeze(-1)
        return (self.head_weight @ first).squeeze(-1) + self.head_bias


def padded_batch(
    encodings: Sequence[Encoding], tasks: Sequence[Task], indices: Sequence[int]
) -> PaddedBatch:
    """Return the texts and tasks at `indices`, padded to the longest of these texts."""
    ids, mask = padded([encodings[index] for index in indices])
    heads = [tasks[index].head for index in indices]
    # A batch without padding needs no mask, and is faster without a mask.
    inputs = {"input_ids": ids} if mask.all() else {"input_ids": ids, "attention_mask": mask}
    return PaddedBatch(
        indices=tuple(indices),
        inputs=inputs,
        tasks=[task_name(index) for index in indices],
        head_weight=torch.stack([weight for weight, _ in heads]),
        head_bias=torch.stack([bias for _, bias in heads]),
    )


def task_name(index: int) -> str:
    """The peers' name for the task of request `index`."""
    return f"task{index}"


def in_order(batches: Sequence[PaddedBatch], logits: Sequence[Tensor]) -> Tensor:
    """Logits of all batches in the order of the requests, in float32."""
    order = torch.tensor([index for batch in batches for index in batch.indices])
    return torch.cat(list(logits))[order.argsort()].float()


def load_encoder(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder, add_pooling_layer=False, dtype=dtype).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class DedicatedModel:
    """One task's own transformers model."""

    encoder: PreTrainedModel
    task: Task

    def logits(self, input_ids: Tensor) -> Tensor:
        """Logits [rows, labels] of texts of one length, [rows, length]."""
        hidden = self.encoder(input_ids=input_ids).last_hidden_state
        return functional.linear(hidden[:, 0], *self.task.head)


def dedicated_model(encoder: PreTrainedModel, task: Task) -> DedicatedModel:
    """Return a full model of a `topk`, `lora` or `head` task, with merged low-rank updates.

    Weights that equal the backbone's weights share their memory, which only makes this peer faster.
    """
    shared = {id(parameter): parameter for parameter in encoder.parameters()}
    own = copy.deepcopy(encoder, shared)
    weights = own_weights(encoder, task)
    own.load_state_dict(weights, strict=False, assign=True)
    return DedicatedModel(encoder=own, task=task)


def answer_alone(models: Sequence[DedicatedModel], encodings: Sequence[Encoding]) -> Tensor:
    return torch.cat(
        [
            model.logits(torch.tensor([encoding.token_ids]))
            for model, encoding in zip(models, encodings, strict=True)
        ]
    ).float()


def own_weights(encoder: PreTrainedModel, task: Task) -> dict[str, Tensor]:
    """Return the task's own weights, which replace those of the encoder, by transformers' names."""
    weights = dict[str, Tensor]()
    if isinstance(task.method, Lora):
        stored = encoder.state_dict()
        scale = task.method.alpha / task.method.rank
        for layer, target, down, up in _updates(task):
            path = f"encoder.layer.{layer}.{TARGETS[target]}.weight"
            merged = stored[path].float() + scale * (up.float() @ down.float())
            weights[path] = merged.to(down.dtype)
    if isinstance(task.method, TopK):
        for name, tensor in task.parameters.items():
            if name.startswith("layers."):
                weights |= _layer_weights(name, tensor)
    return weights


def _layer_weights(name: str, tensor: Tensor) -> dict[str, Tensor]:
    _, layer, part, kind = name.split(".")
    prefix = f"encoder.layer.{layer}"
    if part != "qkv":
        return {f"{prefix}.{PARTS[part]}.{kind}": tensor}
    projections = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
    return {f"{prefix}.attention.self.{one}.{kind}": weight for one, weight in projections}


def _updates(task: Task) -> list[tuple[str, str, Tensor, Tensor]]:
    return [
        (layer, target, down, task.parameters[f"layers.{layer}.lora.{target}.up"])
        for name, down in task.parameters.items()
        if name.endswith(".down") and ".lora." in name
        for _, layer, _, target, _ in [name.split(".")]
    ]


def peft_model(encoder: PreTrainedModel, tasks: Sequence[Task]) -> PeftModel:
    """Change `encoder` into one peft model with the low-rank updates of all tasks; return it."""
    method = tasks[0].method
    if not isinstance(method, Lora):
        raise TypeError(f"peft runs lora tasks, got {method.kind}")
    config = LoraConfig(
        r=method.rank, lora_alpha=int(method.alpha), target_modules=list(TARGETS), lora_dropout=0.0
    )
    model = get_peft_model(encoder, config, adapter_name=task_name(0))
    for index in range(1, len(tasks)):
        model.add_adapter(task_name(index), config)
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for index, task in enumerate(tasks):
        for layer, target, down, up in _updates(task):
            path = f"base_model.model.encoder.layer.{layer}.{TARGETS[target]}"
            for side, weight in (("lora_A", down), ("lora_B", up)):
                linear = modules[f"{path}.{side}.{task_name(index)}"]
                linear.load_state_dict({"weight": weight}, assign=True)
    return model.eval()


def answer_by_adapter_names(model: PeftModel, batches: Sequence[PaddedBatch]) -> Tensor:
    """Answer with mixed batches of peft, in which every row names its adapter."""
    logits = [
        batch.logits(model(**batch.inputs, adapter_names=batch.tasks).last_hidden_state)
        for batch in batches
    ]
    return in_order(batches, logits)


def answer_by_set_adapter(model: PeftModel, batches: Sequence[PaddedBatch]) -> Tensor:
    """Answer batches of one task each; peft activates the adapter of the task before its batch."""
    logits = list[Tensor]()
    for batch in batches:
        model.set_adapter(batch.tasks[0], inference_mode=True)
        logits.append(batch.logits(model(**batch.inputs).last_hidden_state))
    return in_order(batches, logits)
