"""Cross-encoders of sentence-transformers, releases 2 to 6: equal ranks and scores."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from sentence_transformers import CrossEncoder
from torch import nn

from doubles.adapter_folders import loaded_task
from doubles.checkpoints import save_checkpoint
from doubles.imported import answers
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from nunatak_contract.enums import HeadKind, LogitUse, ProblemType, RankingScore
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.transformers_export import export_transformers
from nunatak_exchange.transformers_import import import_transformers

QUERY = "who wrote the report?"
DOCUMENTS = [
    "the report was written by ada in 1843.",
    "a",
    "it is late, and nobody has written to me.",
    "a long document that is to be cut in the middle of its words " * 2,
]
ASKED = {"query": QUERY, "documents": DOCUMENTS}
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
CROSS_ENCODER: Any = CrossEncoder
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {SIGMOID: nn.Sigmoid, IDENTITY: nn.Identity}


def saved(bert: TwinFactory, folder: Path, *, release: int, activation: str | None) -> Path:
    """A cross-encoder in the layout of a release; without an activation, the field is missing."""
    newest = bert.folder / f"cross-encoder-{activation}"
    if release >= 6 and newest.exists():
        return Path(shutil.copytree(newest, folder))
    save_checkpoint(bert, folder, method=TopK(num_layers=1), num_labels=1)
    if release >= 6:
        chosen = None if activation is None else ACTIVATIONS[activation]()
        peer = CROSS_ENCODER(str(folder), device="cpu", activation_fn=chosen)
        peer.save_pretrained(str(newest))
        # The tiny tokenizer lacks the added tokens that transformers writes at saving.
        (newest / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        return Path(shutil.copytree(newest, folder.with_name("newest")))
    if release >= 4:
        named = {} if activation is None else {"activation_fn": activation}
        edit(folder / "config.json", {"sentence_transformers": {"version": "4.1.0", **named}})
    elif activation is not None:
        edit(folder / "config.json", {"sbert_ce_default_activation_function": activation})
    return folder


def check_rank(folder: Path, ours: list[dict[str, Any]]) -> None:
    theirs = CROSS_ENCODER(str(folder), device="cpu").rank(QUERY, DOCUMENTS)
    assert [it["index"] for it in ours] == [it["corpus_id"] for it in theirs]
    scores = torch.tensor([it["score"] for it in ours], dtype=torch.float64)
    expected = torch.tensor([it["score"] for it in theirs], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("release", "activation"), [(2, IDENTITY), (2, None), (4, IDENTITY), (4, None), (6, None)]
)
def test_documents_are_ranked_and_scored_as_the_cross_encoder_does(
    bert: TwinFactory, tmp_path: Path, release: int, activation: str | None
) -> None:
    folder = saved(bert, tmp_path / "it", release=release, activation=activation)
    # Without a chosen activation, release 2 writes no mark of a cross-encoder.
    is_silent = release == 2 and activation is None
    choices = ImportChoices(logit_use=LogitUse.RANKING if is_silent else None)

    (ours,) = answers(folder, bert.backbone, [ASKED], choices=choices)

    check_rank(folder, ours)


def test_a_request_may_choose_another_score(bert: TwinFactory, tmp_path: Path) -> None:
    folder = saved(bert, tmp_path / "it", release=6, activation=IDENTITY)

    (plain,) = answers(folder, bert.backbone, [ASKED])
    (chosen,) = answers(folder, bert.backbone, [ASKED], parameters={"function_to_apply": "sigmoid"})

    logits = torch.tensor([it["score"] for it in plain])
    torch.testing.assert_close(torch.tensor([it["score"] for it in chosen]), logits.sigmoid())


@pytest.mark.parametrize("activation", [SIGMOID, IDENTITY])
def test_an_exported_ranking_ranks_there_as_here(
    bert: TwinFactory, tmp_path: Path, activation: str
) -> None:
    folder = saved(bert, tmp_path / "it", release=6, activation=activation)
    task = loaded_task(bert.backbone, TopK(num_layers=1), kind=HeadKind.RANKING)
    score = import_transformers(Checkpoint(folder), bert.backbone).score
    head = task.manifest.head.model_copy(update={"score": score})
    exported = tmp_path / "exported"

    manifest = task.manifest.model_copy(update={"head": head})
    export_transformers(replace(task, manifest=manifest), exported, bert.backbone)

    assert score is {SIGMOID: RankingScore.SIGMOID, IDENTITY: RankingScore.NONE}[activation]
    (ours,) = answers(exported, bert.backbone, [ASKED])
    check_rank(exported, ours)


def test_the_longest_pair_matches_the_folder(bert: TwinFactory, tmp_path: Path) -> None:
    folder = saved(bert, tmp_path / "it", release=6, activation=SIGMOID)
    edit(folder / "tokenizer_config.json", {"model_max_length": 30})
    assert import_transformers(Checkpoint(folder), bert.backbone).max_length == 30

    edit(folder / "sentence_bert_config.json", {"max_seq_length": 20})
    assert import_transformers(Checkpoint(folder), bert.backbone).max_length == 20
    (ours,) = answers(folder, bert.backbone, [ASKED])
    check_rank(folder, ours)


def test_the_longest_pair_of_an_adapter_matches_the_folder(
    bert: TwinFactory, tmp_path: Path
) -> None:
    base = tmp_path / "it"
    save_checkpoint(bert, base, method=HeadOnly(), num_labels=1)
    peer = CROSS_ENCODER(str(base), device="cpu")
    head = ["classifier", "pooler"]
    peer.add_adapter(LoraConfig(target_modules=["query"], modules_to_save=head))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in peer.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    folder = tmp_path / "adapter"
    peer.save_pretrained(str(folder))
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    edit(folder / "adapter_config.json", {"task_type": "SEQ_CLS"})
    edit(folder / "sentence_bert_config.json", {"max_seq_length": 20})
    choices = ImportChoices(allows_other_base=True)

    (ours,) = answers(folder, bert.backbone, [ASKED], choices=choices)

    check_rank(folder, ours)
    edit(folder / "sentence_bert_config.json", {"max_seq_length": 40})
    (longer,) = answers(folder, bert.backbone, [ASKED], choices=choices)
    assert longer != ours


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"activation_fn": "torch.nn.modules.activation.Tanh"}, "Tanh"),
        ({"activation_fn": "their_code.Sigmoid"}, "their_code"),
        ({"prompts": {"web": "search: "}, "default_prompt_name": "web"}, "'search: '"),
    ],
    ids=["activation", "code-of-their-own", "prompt"],
)
def test_what_scores_otherwise_is_refused_by_name(
    bert: TwinFactory, tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    folder = saved(bert, tmp_path / "it", release=6, activation=SIGMOID)
    edit(folder / "config_sentence_transformers.json", changes)

    with raises("unsupported_import", match=named):
        import_transformers(Checkpoint(folder), bert.backbone)


@pytest.mark.parametrize(
    "choices",
    [
        ImportChoices(logit_use=LogitUse.CLASSIFICATION),
        ImportChoices(problem_type=ProblemType.REGRESSION),
    ],
    ids=["use", "problem-type"],
)
def test_the_caller_may_take_a_cross_encoder_as_a_classifier(
    bert: TwinFactory, tmp_path: Path, choices: ImportChoices
) -> None:
    folder = saved(bert, tmp_path / "it", release=4, activation=SIGMOID)

    imported = import_transformers(Checkpoint(folder), bert.backbone, choices)

    assert imported.spec.head.kind is HeadKind.SEQUENCE_CLASSIFICATION
    assert imported.problem_type is (choices.problem_type or ProblemType.MULTI_LABEL)


def test_a_ranking_of_several_logits_is_refused(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path)

    with raises("unsupported_import", match="3 logits"):
        import_transformers(
            Checkpoint(tmp_path), bert.backbone, ImportChoices(logit_use=LogitUse.RANKING)
        )
