"""Task versions as folders that transformers and sentence-transformers load."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from doubles.backbones import ANSWERING, DECODERS, FAMILIES, Family, tiny_backbone
from doubles.checkpoints import TEXTS, encodings, loaded_task, logits, published_logits
from doubles.damage import files_of_at_most
from doubles.published import AUTO_CLASSES, Twin, TwinFactory
from doubles.refusals import raises
from doubles.tasks import MAX_LENGTH, random_parameters
from nunatak_contract.enums import Activation, HeadKind, HeadNorm, LinearMap, Pooling, ProblemType
from nunatak_contract.heads import TANH_BLOCK, DenseBlock
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_export import (
    export_backbone,
    export_sentence_transformers,
    export_transformers,
)
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import Backbone, Branch, BranchSpec, HeadSpec, build_branch, load_backbone
from nunatak_versions import LoadedTask

Export = Callable[[LoadedTask, Path, Backbone], None]
TOKENIZERS: Any = AutoTokenizer
AUTO_MODEL: Any = AutoModel
METHODS: tuple[Method, ...] = (
    HeadOnly(),
    TopK(num_layers=2),
    Lora(rank=3, alpha=5.0, targets=tuple(LinearMap), first_layer=1),
    Ia3(),
    Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=(), first_layer=1),
    Full(),
)
GELU_BLOCK = DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)
BRANCHES: tuple[tuple[Method, HeadSpec], ...] = (
    (TopK(num_layers=2), HeadSpec(num_labels=3, pooling=Pooling.MEAN)),
    (Full(), HeadSpec(num_labels=5, pooling=Pooling.FIRST, bias=False)),
    (
        Lora(rank=3, alpha=5.0, targets=tuple(LinearMap), first_layer=1),
        HeadSpec(num_labels=4, pooling=Pooling.MEAN, dense=True, block=GELU_BLOCK),
    ),
    (HeadOnly(), HeadSpec(num_labels=2, pooling=Pooling.FIRST, dense=True, block=TANH_BLOCK)),
)


@pytest.fixture(scope="module", params=FAMILIES)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TwinFactory:
    family: Family = request.param
    return TwinFactory(tmp_path_factory.mktemp(family), family=family)


def exported(
    factory: TwinFactory, twin: Twin, folder: Path, problem_type: ProblemType | None = None
) -> Path:
    task = loaded_task(factory.backbone, twin.branch, problem_type=problem_type)
    export_transformers(task, folder, factory.backbone)
    return folder


@pytest.mark.each
@pytest.mark.parametrize("kind", HeadKind)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind.value)
def test_transformers_answers_as_the_task_did_and_what_it_can_say_comes_back_as_it_was(
    factory: TwinFactory, tmp_path: Path, method: Method, kind: HeadKind
) -> None:
    if kind is HeadKind.QUESTION_ANSWERING and factory.family not in ANSWERING:
        pytest.skip("transformers has no such class")
    twin = factory.twin(method, kind=kind)
    folder = exported(factory, twin, tmp_path / "out")

    model = AUTO_CLASSES[kind].from_pretrained(folder).eval()

    for encoding in encodings(factory.backbone):
        torch.testing.assert_close(
            published_logits(model, encoding), twin.expected(encoding), atol=1e-4, rtol=0
        )
    if isinstance(method, HeadOnly | TopK | Full):
        imported = import_transformers(Checkpoint(folder), factory.backbone)
        assert imported.spec == twin.branch.spec
        assert imported.max_length == MAX_LENGTH
        for name, tensor in twin.branch.parameters.items():
            assert torch.equal(imported.parameters[name], tensor), name


@pytest.mark.parametrize("pooling", [None, Pooling.MEAN])
def test_an_exported_backbone_is_the_same_backbone(
    factory: TwinFactory, tmp_path: Path, pooling: Pooling | None
) -> None:
    base = tiny_backbone(family=factory.family, pooling=pooling)
    if factory.family in {*DECODERS, "modernbert"}:
        with raises("unsupported_export", match="start from one of bert,"):
            export_backbone(base.parameters, base, tmp_path / "out")
        return

    export_backbone(base.parameters, base, tmp_path / "out")

    found = load_backbone(tmp_path / "out")
    assert (found.digest, found.pooling) == (base.digest, base.pooling)
    assert (found.pooler is None) == (base.pooler is None)
    if found.pooler is not None and base.pooler is not None:
        assert torch.equal(found.pooler.weight, base.pooler.weight)
    _, report = AUTO_MODEL.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if not name.startswith("pooler.")]


def test_low_rank_updates_come_back_as_the_layers_they_change(
    bert: TwinFactory, tmp_path: Path
) -> None:
    twin = bert.twin(Lora(rank=2, first_layer=2, alpha=16.0, targets=QUERY_AND_VALUE))

    imported = import_transformers(
        Checkpoint(exported(bert, twin, tmp_path / "out")), bert.backbone
    )

    assert imported.spec.method == TopK(num_layers=2)


@pytest.mark.parametrize("problem_type", ProblemType)
def test_labels_and_problem_type_are_written(
    bert: TwinFactory, tmp_path: Path, problem_type: ProblemType
) -> None:
    num_labels = 1 if problem_type is ProblemType.REGRESSION else 3
    twin = bert.twin(TopK(num_layers=1), num_labels=num_labels)

    folder = exported(bert, twin, tmp_path / "out", problem_type)

    config = AUTO_CLASSES[HeadKind.SEQUENCE_CLASSIFICATION].from_pretrained(folder).config
    assert config.problem_type == problem_type.value
    assert config.id2label == {index: f"label {index}" for index in range(num_labels)}


def test_the_tokenizer_gives_the_same_token_ids(factory: TwinFactory, tmp_path: Path) -> None:
    folder = exported(factory, factory.twin(HeadOnly()), tmp_path / "out")

    tokenizer = TOKENIZERS.from_pretrained(folder)

    for text, encoding in zip(TEXTS, encodings(factory.backbone), strict=True):
        pair = (text,) if isinstance(text, str) else text
        assert tuple(tokenizer(*pair, truncation=True)["input_ids"]) == encoding.token_ids
    batch = tokenizer(["a", "a longer one"], padding=True)
    assert batch["input_ids"][0][-1] == factory.backbone.config.padding_id
    assert tokenizer.model_max_length == MAX_LENGTH
    expects_types = factory.backbone.config.num_token_types > 1
    assert ("token_type_ids" in batch) == expects_types


def drawn(backbone: Backbone, method: Method, head: HeadSpec) -> Branch:
    spec = BranchSpec(method=method, head=head)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


@pytest.mark.each
@pytest.mark.parametrize(("method", "head"), BRANCHES)
def test_the_vector_that_sentence_transformers_gives_a_text_is_the_logits_of_the_task(
    factory: TwinFactory, tmp_path: Path, method: Method, head: HeadSpec
) -> None:
    backbone = factory.backbone
    branch = drawn(backbone, method, head)

    export_sentence_transformers(loaded_task(backbone, branch), tmp_path / "out", backbone)

    model: Any = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    vectors = model.encode(list(TEXTS), convert_to_tensor=True)
    expected = [logits(backbone, branch, it) for it in encodings(backbone)]
    torch.testing.assert_close(vectors, torch.stack(expected), atol=1e-4, rtol=0)
    assert model.max_seq_length == MAX_LENGTH
    assert len(model[0].auto_model.config.id2label) == head.num_labels


BOTTLENECK = Bottleneck(size=4)
FIRST_DENSE = HeadSpec(num_labels=2, pooling=Pooling.FIRST, dense=True)
FIRST, MEAN = (HeadSpec(num_labels=2, pooling=it) for it in (Pooling.FIRST, Pooling.MEAN))
TAGS = HeadSpec(num_labels=3, kind=HeadKind.TOKEN_CLASSIFICATION)


@pytest.mark.parametrize(
    ("export", "method", "head", "part"),
    [
        (export_transformers, BOTTLENECK, FIRST_DENSE, "bottleneck adapters"),
        (export_transformers, HeadOnly(), MEAN, "mean pooling, no dense layer"),
        (export_transformers, HeadOnly(), FIRST, "first pooling, no dense layer"),
        (export_sentence_transformers, BOTTLENECK, MEAN, "bottleneck"),
        (export_sentence_transformers, HeadOnly(), TAGS, "no modules"),
    ],
)
def test_what_a_library_does_not_compute_is_refused_with_the_alternative(
    export: Export, method: Method, head: HeadSpec, part: str, tmp_path: Path
) -> None:
    backbone = tiny_backbone()
    task = loaded_task(backbone, drawn(backbone, method, head))

    with raises("unsupported_export", match=part) as caught:
        export(task, tmp_path / "out", backbone)

    assert "--format hub" in str(caught.value)
    is_advised = export is export_transformers and method == HeadOnly()
    assert ("--format sentence-transformers" in str(caught.value)) == is_advised
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled(bert: TwinFactory, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()

    exported(bert, bert.twin(HeadOnly()), target)

    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert json.loads((target / "config.json").read_bytes())["architectures"] == [
        "BertForSequenceClassification"
    ]


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(
    bert: TwinFactory, tmp_path: Path
) -> None:
    with files_of_at_most(20_000), pytest.raises(OSError, match="too large"):
        exported(bert, bert.twin(HeadOnly()), tmp_path / "out")

    assert list(tmp_path.iterdir()) == []
