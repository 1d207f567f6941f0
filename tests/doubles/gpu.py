"""Tiny models on a CUDA device, and the same models in float32 on the CPU."""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from doubles.backbones import Family, random_text
from doubles.published import Twin, TwinFactory
from doubles.tasks import EVERY_FORM
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    Row,
    convert_branch,
    forward,
    load_backbone,
    pack_backbone,
)

DEVICE = torch.device(os.environ.get("NUNATAK_TEST_DEVICE", "cuda"))
"""`make gpu` names it; on a CPU the checks show only that they run."""
NUM_LAYERS, MAX_TOKENS = 4, 64
COPIES = 2
"""Tasks of each form, so that each is grouped."""
METHODS: list[Method] = [*EVERY_FORM, Lora(rank=128, alpha=8.0, targets=QUERY_AND_VALUE)]
KINDS = list(HeadKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A task by index, and its input."""

    task: int
    encoding: Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A backbone on the device, as a server holds it, and tasks on it."""

    backbone: Backbone
    branches: tuple[Branch, ...]

    def rows(self, questions: list[Question]) -> list[Row]:
        return [Row(encoding=it.encoding, branch=self.branches[it.task]) for it in questions]

    def answers(self, questions: list[Question]) -> list[Tensor]:
        """Logits of each question, of one mixed batch, on the host."""
        with torch.inference_mode():
            logits = forward(self.backbone, self.rows(questions))
            return [it.cpu() for it in logits]


def make_twins(folder: Path, family: Family) -> list[Twin]:
    """`COPIES` published models of each method, with heads of all kinds, and their branches."""
    factory = TwinFactory(folder, family=family, num_layers=NUM_LAYERS)
    methods = [method for method in METHODS for _ in range(COPIES)]
    return [
        factory.twin(method, kind=KINDS[index % len(KINDS)], num_labels=2 + index % 5)
        for index, method in enumerate(methods)
    ]


def served(folder: Path, branches: list[Branch], *, dtype: torch.dtype) -> Served:
    """The backbone of a folder with the kernels of the device, and its tasks."""
    backbone = pack_backbone(load_backbone(folder, dtype=dtype, device=DEVICE))
    return _with(backbone, branches)


def plainly_served(folder: Path, branches: list[Branch], *, dtype: torch.dtype) -> Served:
    """The backbone with torch's own kernels, and its tasks, each of which runs alone."""
    return _with(load_backbone(folder, dtype=dtype, device=DEVICE), branches)


def random_questions(seed: int, num_tasks: int) -> list[Question]:
    """Requests of each task with texts of different lengths, some of them the same, shuffled."""
    chance = random.Random(seed)
    lengths = [1, MAX_TOKENS, *(chance.randint(2, MAX_TOKENS) for _ in range(5))]
    encodings = [random_text(chance, length) for length in lengths]
    tasks = [task for task in range(num_tasks) for _ in range(2)]
    chance.shuffle(tasks)
    return [Question(task=task, encoding=chance.choice(encodings)) for task in tasks]


def error(answers: list[Tensor], expected: list[Tensor]) -> float:
    """Root mean square of the difference, divided by the root mean square of `expected`."""
    difference = torch.cat(
        [(a.float() - b).flatten() for a, b in zip(answers, expected, strict=True)]
    )
    scale = torch.cat([b.flatten() for b in expected])
    return (difference.square().mean() / scale.square().mean()).sqrt().item()


def _with(backbone: Backbone, branches: list[Branch]) -> Served:
    return Served(
        backbone=backbone, branches=tuple(convert_branch(branch, backbone) for branch in branches)
    )
