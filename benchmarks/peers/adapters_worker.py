"""AdapterHub's `adapters`: bottleneck tasks in one batch, by `BatchSplit` or `Parallel`.

`worker.py` starts this program in an environment with the versions that `adapters` requires, and
with a folder that holds a job.
"""
# pyrefly: ignore-errors
# The libraries of this process are not installed where the project is checked.

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import adapters
import torch
from adapters import AdapterSetup, BnConfig
from adapters.composition import BatchSplit, Parallel
from protocol import serve
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertModel

Job = dict[str, Any]
Tensors = dict[str, Tensor]
Batches = list[list[int]]
"""The numbers of the texts of each batch; each text runs with the task of the same number."""
Run = Callable[[], Tensor]

PARTS = {"attention_adapter": "attention.output", "feedforward_adapter": "output"}
SIDES = {"down": "adapter_down.0", "up": "adapter_up"}


def main() -> None:
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    torch.set_num_threads(job["num_threads"])
    model = adapted_model(job, tensors)
    runs = {}
    for case, settings in job["cases"].items():
        make = {"batch_split": batch_split, "parallel": parallel}[settings["composition"]]
        runs[case] = make(model, job, settings["batches"], tensors)
    with torch.inference_mode():
        serve(runs)


def adapted_model(job: Job, tensors: Tensors) -> BertModel:
    """Return the encoder with all tasks' adapters after both blocks, before residual and norm."""
    model = BertModel.from_pretrained(job["backbone"], add_pooling_layer=False)
    adapters.init(model)
    config = BnConfig(
        mh_adapter=True,
        output_adapter=True,
        reduction_factor=model.config.hidden_size / job["size"],
        non_linearity="tanh",
        original_ln_before=False,
        residual_before_ln=True,
        leave_out=list(range(job["first_layer"])),
    )
    names = list(map(task_name, range(job["num_tasks"])))
    for name in names:
        model.add_adapter(name, config=config)  # pyrefly: ignore[unexpected-keyword] - adapters' own
    modules = dict(model.named_modules())
    found = 0
    for key, tensor in tensors.items():
        name, parameter = key.split("/")
        match parameter.split("."):
            case ["layers", layer, part, side, kind] if part in PARTS:
                block = f"encoder.layer.{layer}.{PARTS[part]}"
                adapter = modules[f"{block}.adapters.{name}"]
                getattr(adapter.get_submodule(SIDES[side]), kind).data = tensor
                found += 1
    expected = len(names) * (model.config.num_hidden_layers - job["first_layer"]) * 8
    if found != expected:
        raise SystemExit(f"expected {expected} adapter tensors in the job, found {found}")
    return model.eval()


def batch_split(model: BertModel, job: Job, batches: Batches, tensors: Tensors) -> Run:
    """Return a run in which each row of a batch uses the adapter of its own task."""
    heads = [stacked_heads(batch, tensors) for batch in batches]
    inputs = [padded([job["texts"][index] for index in batch]) for batch in batches]
    setups = [BatchSplit(*map(task_name, batch), batch_sizes=[1] * len(batch)) for batch in batches]
    order = torch.tensor([index for batch in batches for index in batch]).argsort()

    def run() -> Tensor:
        logits = []
        for setup, given, head in zip(setups, inputs, heads, strict=True):
            with AdapterSetup(setup):
                logits.append(apply_heads(model(**given).last_hidden_state, head))
        return torch.cat(logits)[order]

    return run


def parallel(model: BertModel, job: Job, batches: Batches, tensors: Tensors) -> Run:
    """Return a run of all adapters on every text; the layers below the adapters run once."""
    tasks = range(job["num_tasks"])
    heads, setup = stacked_heads(tasks, tensors), Parallel(*map(task_name, tasks))
    inputs = [padded([job["texts"][index] for index in batch]) for batch in batches]

    def run() -> Tensor:
        with AdapterSetup(setup):
            hidden = [model(**given).last_hidden_state for given in inputs]
        return torch.cat([apply_heads(states, heads) for states in hidden])

    return run


def stacked_heads(tasks: Iterable[int], tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Return weights [rows, labels, width] and biases [rows, labels] of the tasks' heads."""
    names = list(map(task_name, tasks))
    weight = torch.stack([tensors[f"{name}/head.output.weight"] for name in names])
    bias = torch.stack([tensors[f"{name}/head.output.bias"] for name in names])
    return weight, bias


def task_name(index: int) -> str:
    return f"task{index}"


def apply_heads(hidden: Tensor, heads: tuple[Tensor, Tensor]) -> Tensor:
    weight, bias = heads
    return (weight @ hidden[:, 0].unsqueeze(-1)).squeeze(-1) + bias


def padded(texts: list[list[int]]) -> dict[str, Tensor]:
    """Return the inputs of one batch; a batch without padding has no mask."""
    longest = max(len(text) for text in texts)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    return {"input_ids": ids} if mask.all() else {"input_ids": ids, "attention_mask": mask}


if __name__ == "__main__":
    main()
