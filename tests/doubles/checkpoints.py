"""Fine-tuned checkpoints as transformers itself writes them, and task versions to export."""

import shutil
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from doubles import backbones
from doubles.backbones import tiny_tokenizer
from doubles.published import Twin, TwinFactory, logits_of
from doubles.sentence_folders import edit
from doubles.tasks import CREATED_AT, MAX_LENGTH, PROBE_INPUTS, numbered
from nunatak_contract.enums import HeadKind, ProblemType, RankingScore
from nunatak_contract.methods import HeadOnly, Method
from nunatak_exchange.checks import ImportedTask
from nunatak_model import Backbone, Branch, Encoding, Row, TextInput, build_branch, forward
from nunatak_versions import LoadedTask, Provenance, draft_task, head_record, load_task

TEXTS: tuple[TextInput, ...] = (
    "where is my parcel?",
    "a",
    ("what is it?", "it is a test of pairs, long enough to matter."),
)


def save_checkpoint(
    factory: TwinFactory,
    folder: Path,
    *,
    method: Method | None = None,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
    num_labels: int = 3,
    problem_type: ProblemType | None = None,
) -> Twin:
    """Write a fine-tuned model with its tokenizer; the twin gives the expected answers.

    Equal arguments give one model, because making one takes longer than most tests.
    """
    key = repr((method, kind, num_labels, problem_type))
    if key not in factory.written:
        twin = factory.twin(method or HeadOnly(), kind=kind, num_labels=num_labels)
        model = cast("PreTrainedModel", twin.model)
        model.config.problem_type = None if problem_type is None else problem_type.value
        made = factory.folder / f"written-{len(factory.written)}"
        model.save_pretrained(made)
        save_tokenizer(factory, made)
        factory.written[key] = made, twin
    made, twin = factory.written[key]
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return twin


def save_tokenizer(factory: TwinFactory, folder: Path, *, max_length: int = 40) -> None:
    """Write the backbone's tokenizer as training leaves it: with truncation turned on."""
    tokenizer = tiny_tokenizer(factory.family)
    tokenizer.enable_truncation(17)
    backbones.save_tokenizer(folder, factory.family, tokenizer)
    edit(folder / "tokenizer_config.json", {"model_max_length": max_length})


def encodings(backbone: Backbone) -> list[Encoding]:
    return backbone.tokenizer.encode(TEXTS, max_length=MAX_LENGTH)


def branch_of(imported: ImportedTask, backbone: Backbone) -> Branch:
    return build_branch(imported.spec, backbone.config, imported.parameters)


def logits(backbone: Backbone, branch: Branch, encoding: Encoding) -> Tensor:
    with torch.inference_mode():
        (output,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
    return output


def loaded_task(
    backbone: Backbone,
    branch: Branch,
    *,
    labels: tuple[str, ...] = (),
    problem_type: ProblemType | None = None,
    score: RankingScore = RankingScore.SIGMOID,
) -> LoadedTask:
    """Draft a task version of this branch, number it, and load it as a server would."""
    head = branch.spec.head
    if not labels and head.kind.fixed_outputs is None:
        labels = tuple(f"label {index}" for index in range(head.num_labels))
    draft = draft_task(
        "tone",
        method=branch.spec.method,
        head=head_record(head, labels, problem_type, score),
        parameters=branch.parameters,
        backbone=backbone,
        max_length=MAX_LENGTH,
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=CREATED_AT),
    )
    return load_task(numbered(draft.manifest), draft.blobs["parameters"], backbone)


def loaded_import(imported: ImportedTask, backbone: Backbone) -> LoadedTask:
    return loaded_task(
        backbone,
        branch_of(imported, backbone),
        labels=imported.labels,
        problem_type=imported.problem_type,
        score=imported.score,
    )


def published_logits(model: nn.Module, encoding: Encoding) -> Tensor:
    with torch.inference_mode():
        return logits_of(model, encoding)
