"""ModernBERT with a head, from transformers and back: the same answers in every variant."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
)

from doubles.checkpoints import (
    branch_of,
    encodings,
    loaded_task,
    logits,
    published_logits,
    save_checkpoint,
)
from doubles.imported import answers
from doubles.published import TwinFactory
from doubles.refusals import raises
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.methods import TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_export import export_transformers
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import load_backbone

PIPELINE: Any = pipeline
TOLERANCE = 1e-5
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
    "head": {"classifier_bias": True, "classifier_activation": "relu"},
    "mean": {"classifier_pooling": "mean"},
    "layers": {"layer_types": ["sliding_attention"] * 3, "local_attention": 6},
    "rotation": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        }
    },
    "yarn": {
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        }
    },
    "numbers": {"norm_eps": 1e-2, "hidden_activation": "gelu_new"},
}
CLASSES: dict[HeadKind, Any] = {
    HeadKind.SEQUENCE_CLASSIFICATION: AutoModelForSequenceClassification,
    HeadKind.TOKEN_CLASSIFICATION: AutoModelForTokenClassification,
    HeadKind.QUESTION_ANSWERING: AutoModelForQuestionAnswering,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_answers_alike_imported_and_exported_back(
    variant: str, tmp_path: Path
) -> None:
    factory = TwinFactory(
        tmp_path / "base", family="modernbert", num_layers=3, options=VARIANTS[variant]
    )
    backbone = factory.backbone
    for kind, auto_class in CLASSES.items():
        there, back = tmp_path / f"{kind}", tmp_path / f"{kind}-back"
        twin = save_checkpoint(factory, there, method=TopK(num_layers=1), kind=kind)

        imported = import_transformers(Checkpoint(there), backbone)
        branch = branch_of(imported, backbone)
        export_transformers(loaded_task(backbone, branch), back, backbone)
        model = auto_class.from_pretrained(back).eval()

        assert imported.spec == twin.branch.spec
        assert (
            import_transformers(Checkpoint(back), load_backbone(factory.folder)).spec
            == imported.spec
        )
        for encoding in encodings(backbone):
            expected = twin.expected(encoding)
            for found in (logits(backbone, branch, encoding), published_logits(model, encoding)):
                torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("pooling", [Pooling.FIRST, Pooling.MEAN])
def test_scores_equal_those_of_the_pipeline(pooling: Pooling, tmp_path: Path) -> None:
    named = {Pooling.FIRST: "cls", Pooling.MEAN: "mean"}[pooling]
    factory = TwinFactory(
        tmp_path / "base", family="modernbert", options={"classifier_pooling": named}
    )
    save_checkpoint(factory, tmp_path / "tuned", method=TopK(num_layers=2))
    texts = ["where is my parcel?", "who wrote it, and when?"]

    ours = answers(tmp_path / "tuned", factory.backbone, texts)

    theirs = PIPELINE("text-classification", model=str(tmp_path / "tuned"), top_k=None)
    for answer, expected in zip(ours, theirs(texts), strict=True):
        scores = {it["label"]: it["score"] for it in answer}
        assert scores == pytest.approx({it["label"]: it["score"] for it in expected}, abs=1e-5)


def test_an_encoder_that_is_computed_otherwise_is_another_backbone(tmp_path: Path) -> None:
    factory = TwinFactory(tmp_path / "base", family="modernbert")
    save_checkpoint(factory, tmp_path / "tuned")
    path = tmp_path / "tuned" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "local_attention": 4}))

    with raises("foreign_backbone", match="its reach is 2, the backbone's is 4"):
        import_transformers(Checkpoint(tmp_path / "tuned"), factory.backbone)
