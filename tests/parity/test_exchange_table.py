"""Checkpoints of transformers, peft and adapters over all families: equal answers, or a refusal.

Each checkpoint is written by its own library and imported. Its answers equal its library's. Then
the task is exported and loaded with the library again. `test_peft_folders.py` compares the adapters
of every family. The table in `docs/interchange.md` is made from the table here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from torch import Tensor

from doubles.adapter_folders import ADAPTERHUB, adapterhub_folder, edit_json
from doubles.backbones import Family, tiny_backbone
from doubles.checkpoints import encodings, loaded_import, published_logits, save_checkpoint
from doubles.checkpoints import logits as answer_of
from doubles.peft_folders import PeftBase, id2label, save
from doubles.published import AUTO_CLASSES, TwinFactory
from doubles.published_names import PEFT_TARGETS
from nunatak_contract.enums import HeadKind, LinearMap, LogitUse, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.importing import import_folder
from nunatak_exchange.transformers_export import export_transformers
from nunatak_model import Backbone

TOLERANCE = 1e-4
"""Largest difference of a logit, as a part of the largest logit."""
PAGE = Path(__file__).parents[2] / "docs" / "interchange.md"
LABELS, TOKENS = HeadKind.SEQUENCE_CLASSIFICATION, HeadKind.TOKEN_CLASSIFICATION
ANSWERS, RANKING = HeadKind.QUESTION_ANSWERING, HeadKind.RANKING
ANY_BASE = ImportChoices(allows_other_base=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A head that transformers saved with its encoder."""

    kind: HeadKind = LABELS
    num_labels: int = 3
    problem_type: ProblemType | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])


def pooled(name: str) -> Saved:
    return Saved(options={"classifier_pooling": name})


HEADS: dict[str, Saved] = {
    "one label": Saved(),
    "several labels": Saved(problem_type=ProblemType.MULTI_LABEL),
    "number": Saved(num_labels=1, problem_type=ProblemType.REGRESSION),
    "ranking": Saved(kind=RANKING),
    "tokens": Saved(kind=TOKENS),
    "answers": Saved(kind=ANSWERS),
    "first token": pooled("bos"),
    "mean": pooled("mean"),
    "late mean": pooled("late"),
}
WITH_HEADS: dict[Family, tuple[str, ...]] = {
    "bert": ("one label", "several labels", "number", "ranking", "answers"),
    "roberta": ("ranking", "tokens", "answers"),
    "distilbert": ("one label", "answers"),
    "electra": ("one label", "tokens"),
    "deberta-v2": ("one label", "tokens", "answers"),
    "mpnet": ("one label", "ranking"),
    "modernbert": ("one label", "mean", "answers"),
    "eurobert": ("first token", "mean", "late mean", "tokens"),
    "nomic_bert": ("one label", "tokens"),
    "gte": ("one label", "ranking"),
    "llama": ("one label", "answers"),
    "qwen3": ("one label", "ranking"),
}
SAVED = [(family, head) for family, heads in WITH_HEADS.items() for head in heads]
ADAPTERHUB_CASES = sorted(json.loads((ADAPTERHUB / "expected.json").read_text())["logits"])
IN_SHORT = {
    ("bert", "ranking"),
    ("eurobert", "late mean"),
    ("gte", "one label"),
    ("qwen3", "ranking"),
}
"""The checkpoints of every run; the others are for runs with slow tests."""


def cases(pairs: Sequence[tuple[str, str]]) -> list[Any]:
    return [
        pytest.param(*it, marks=() if it in IN_SHORT else pytest.mark.slow, id="-".join(it))
        for it in pairs
    ]


def assert_equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    largest = max(float(it.abs().max()) for it in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) <= TOLERANCE * largest


@pytest.mark.parametrize(("family", "head"), cases(SAVED))
def test_a_saved_model_answers_alike_imported_and_exported_back(
    family: Family, head: str, tmp_path: Path
) -> None:
    saved = HEADS[head]
    factory = TwinFactory(tmp_path / "base", family=family, num_layers=2, options=saved.options)
    backbone, texts = factory.backbone, encodings(factory.backbone)
    twin = save_checkpoint(
        factory,
        tmp_path / "theirs",
        method=TopK(num_layers=1),
        kind=saved.kind,
        num_labels=saved.num_labels,
        problem_type=saved.problem_type,
    )
    choices = ImportChoices(logit_use=LogitUse.RANKING if saved.kind is RANKING else None)
    expected = [twin.expected(it) for it in texts]

    imported = import_folder(Checkpoint(tmp_path / "theirs"), backbone, choices=choices)
    task = loaded_import(imported, backbone)
    export_transformers(task, tmp_path / "ours", backbone)
    back = AUTO_CLASSES[saved.kind].from_pretrained(tmp_path / "ours").eval()

    assert imported.spec.method == TopK(num_layers=1)
    assert imported.spec.head.kind is saved.kind
    assert_equal([answer_of(backbone, task.branch, it) for it in texts], expected)
    assert_equal([published_logits(back, it) for it in texts], expected)


def edited(name: str, changes: Mapping[str, object]) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / name, changes)


def configured(**changes: object) -> Callable[[Path], None]:
    return edited("config.json", changes)


def adapted(**changes: object) -> Callable[[Path], None]:
    return edited("adapter_config.json", changes)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


REFUSED: dict[str, tuple[Family, str, Callable[[Path], None], str, str]] = {
    "a class for another task": (
        "bert",
        "transformers",
        configured(architectures=["BertForMultipleChoice"]),
        "unsupported_import",
        "expected a class of transformers called",
    ),
    "a class that transformers lacks": (
        "nomic_bert",
        "transformers",
        configured(architectures=["NomicBertForQuestionAnswering"]),
        "unsupported_import",
        "a class that transformers has",
    ),
    "ALBERT": (
        "bert",
        "transformers",
        configured(model_type="albert"),
        "unsupported_import",
        "checkpoints are read of bert",
    ),
    "quantized weights": (
        "llama",
        "transformers",
        configured(quantization_config={"quant_method": "bitsandbytes"}),
        "unsupported_backbone",
        "take the original",
    ),
    "DeBERTa with a convolution": (
        "deberta-v2",
        "transformers",
        configured(conv_kernel_size=3),
        "unsupported_backbone",
        "conv_kernel_size must be 0",
    ),
    "another number of layers": (
        "gte",
        "transformers",
        configured(num_hidden_layers=3),
        "foreign_backbone",
        "its num_layers is 3, the backbone's is 2",
    ),
    "an unknown pooling": (
        "eurobert",
        "transformers",
        configured(classifier_pooling="max"),
        "unsupported_import",
        "expected one of late, bos, mean",
    ),
    "pickled weights": ("bert", "transformers", pickled, "pickled_weights", "save_pretrained"),
    "prefix tuning": (
        "bert",
        "peft",
        adapted(peft_type="PREFIX_TUNING"),
        "unsupported_import",
        "train the task again with LoRA or IA3",
    ),
    "an adapter of a language model": (
        "llama",
        "peft",
        adapted(task_type="CAUSAL_LM"),
        "unsupported_import",
        "expected a task_type out of SEQ_CLS",
    ),
    "an adapter without the base's pooling": (
        "eurobert",
        "peft",
        configured(classifier_pooling=None),
        "unsupported_import",
        "write classifier_pooling of the base's config.json",
    ),
    "answers on token types": (
        "bert",
        "peft",
        adapted(task_type="QUESTION_ANS"),
        "unsupported_import",
        "merge the adapter",
    ),
    "parallel adapters": (
        "bert",
        "adapters",
        adapted(**{"config.is_parallel": True}),
        "unsupported_import",
        "expected a bottleneck adapter",
    ),
}
"""Checkpoints that are refused: family, library, change of a sound folder, code, and advice."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_would_answer_otherwise_is_refused_with_what_to_do(
    name: str, tmp_path: Path
) -> None:
    family, writer, change, code, advice = REFUSED[name]
    folder, backbone = sound(tmp_path, family, writer)
    import_folder(Checkpoint(folder), backbone, choices=ANY_BASE)
    change(folder)

    with pytest.raises(NunatakError) as caught:
        import_folder(Checkpoint(folder), backbone, choices=ANY_BASE)

    assert caught.value.code == code
    assert advice in str(caught.value)


def sound(folder: Path, family: Family, writer: str) -> tuple[Path, Backbone]:
    """A folder that imports, and its backbone."""
    match writer:
        case "transformers":
            factory = TwinFactory(folder / "base", family=family, num_layers=2)
            save_checkpoint(factory, folder / "it")
            return folder / "it", factory.backbone
        case "peft":
            base = PeftBase(folder / "base", family, num_layers=1)
            last = PEFT_TARGETS[family][LinearMap.FEEDFORWARD_OUT]
            config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=rf".*\d\.{last}")
            meaning = {**id2label(3), "classifier_pooling": "bos"}
            save(base.train(config, num_labels=3), folder / "it", meaning=meaning)
            return folder / "it", base.backbone
        case _:
            case = next(it for it in ADAPTERHUB_CASES if it.startswith(family))
            return adapterhub_folder(folder / "it", case), tiny_backbone(
                family=family, num_layers=2
            )


def rendered() -> str:
    """The tables of the documentation."""
    lines = ["| `model_type` | transformers | peft | adapters |", "|---|---|---|---|"]
    for family, heads in WITH_HEADS.items():
        hub = sum(it.startswith(f"{family}-") for it in ADAPTERHUB_CASES)
        folders = f"{hub} folders" if hub else "refused"
        lines.append(f"| `{family}` | {', '.join(heads)} | LoRA, IA3 | {folders} |")
    lines += ["", "| refused | from | code |", "|---|---|---|"]
    lines += [
        f"| {name} | {writer} | `{code}` |" for name, (_, writer, _, code, _) in REFUSED.items()
    ]
    return "\n".join(lines)


def test_the_page_shows_these_tables() -> None:
    assert rendered() in PAGE.read_text(encoding="utf-8"), f"write this to {PAGE}:\n{rendered()}"
