"""peft's folders here and our folders in peft: the same logits, for every kind of adapter."""

from dataclasses import replace
from operator import or_
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from peft import IA3Config, LoraConfig
from torch import Tensor

from doubles.adapter_folders import edit_json, loaded_task
from doubles.backbones import ANSWERING, FAMILIES, Family, encoded
from doubles.checkpoints import branch_of, loaded_import, published_logits
from doubles.peft_folders import ENCODINGS, NUM_LAYERS, PeftBase, difference, id2label, save
from doubles.published_names import PEFT_TARGETS
from doubles.refusals import raises
from doubles.serving_kernels import with_gpu_kernels
from doubles.tasks import CREATED_AT
from nunatak_contract.enums import HeadKind, ProblemType, RankingScore
from nunatak_contract.methods import QUERY_AND_VALUE, Ia3, Lora
from nunatak_exchange.backbones import add_backbone
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices, ImportedTask
from nunatak_exchange.importing import draft_imported, import_folder
from nunatak_exchange.peft_folders import export_peft, import_peft
from nunatak_model import Branch, Encoding, Row, convert_branch, forward, load_backbone
from nunatak_versions import LoadedTask

TOLERANCE = 1e-5
POOLINGS: dict[str, dict[str, object]] = {
    "modernbert": {"classifier_pooling": "cls"},
    "eurobert": {"classifier_pooling": "bos"},
}
"""The pooling of tiny bases, where the base decides it."""
READ_TYPES = ("bert", "electra")
"""Families whose question answering peft computes without token types."""
PATHS = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
REGEXES = (
    r".*\.(query|value)",
    r".*encoder\.layer\.[12]\..*dense",
    r"^(?!.*key).*layer\.\d+\.attention\.self\.\w+$",
)
PATTERN_KEYS = (
    "query",
    "self.value",
    "attention.output.dense",
    r".*layer\.1\..*",
    r"layer\.(0|2)\.\w+\.dense",
    "pooler.dense",
)
HEADS = {
    "single": ("SEQ_CLS", 3, None),
    "multi": ("SEQ_CLS", 4, "multi_label_classification"),
    "regression": ("SEQ_CLS", 1, "regression"),
    "tokens": ("TOKEN_CLS", 5, None),
    "answers": ("QUESTION_ANS", 2, None),
}

IA3: dict[str, tuple[Any, Any]] = {
    "paper": (r".*(self\.(key|value)|layer\.\d+\.output\.dense)", r".*layer\.\d+\.output\.dense"),
    "default": (None, None),
    "outputs": (["query", "key", "value", "dense"], []),
    "pooler": (["value", "dense"], ["dense"]),
    "one-layer": (r".*layer\.1\.(intermediate|output)\.dense", r".*layer\.1\.output\.dense"),
    "some-layers": (r".*layer\.(0|2)\.attention\.self\.key", []),
}
"""Modules to scale, and the modules among them with a scaled input; None: peft's choice."""
SCORES = (
    (None, RankingScore.SIGMOID),
    ("torch.nn.modules.activation.Sigmoid", RankingScore.SIGMOID),
    ("torch.nn.modules.linear.Identity", RankingScore.NONE),
)

patterns = st.sampled_from(PATTERN_KEYS)
modules = st.lists(st.sampled_from((*PATHS, "dense")), min_size=1, unique=True)
layers = st.sets(st.integers(0, NUM_LAYERS - 1), min_size=1).map(sorted)
adapters = st.builds(
    or_,
    st.one_of(
        st.fixed_dictionaries({"target_modules": modules}),
        st.fixed_dictionaries(
            {"target_modules": modules, "layers_to_transform": layers},
            optional={"layers_pattern": st.just("layer")},
        ),
        st.fixed_dictionaries({"target_modules": st.sampled_from((*REGEXES, "all-linear"))}),
    ),
    st.fixed_dictionaries(
        {
            "r": st.integers(1, 6),
            "lora_alpha": st.integers(1, 20),
            "use_rslora": st.booleans(),
            "rank_pattern": st.dictionaries(patterns, st.integers(1, 7), max_size=3),
            "alpha_pattern": st.dictionaries(patterns, st.integers(1, 9), max_size=3),
            "exclude_modules": st.sampled_from((None, ["key"], r".*layer\.2\..*")),
            # A new list each time, because peft adds to the list.
            "modules_to_save": st.none() | st.builds(lambda: ["pooler"]),
        }
    ),
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PeftBase]:
    return {
        family: PeftBase(tmp_path_factory.mktemp(family), family, num_layers=count)
        for family in FAMILIES
        for count in [NUM_LAYERS if family in {"bert", "roberta"} else 2]
    }


def plain(
    base: PeftBase, folder: Path, *, num_labels: int = 2, meaning: dict[str, object] | None = None
) -> Path:
    """A folder of updates of the queries alone."""
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    adapted = base.train(config, num_labels=num_labels, seed=1)
    return save(adapted, folder, meaning=meaning or id2label(num_labels))


def there_and_back(
    base: PeftBase, folder: Path, task_type: str, num_labels: int
) -> tuple[LoadedTask, ImportedTask]:
    """Import `theirs` and export it to `ours`; all answer alike. Return both imports."""
    # peft saves overlapping patterns in another order, so only a reloaded model matches the folder.
    theirs = base.load(folder / "theirs", task_type, num_labels)
    task = loaded_import(import_peft(Checkpoint(folder / "theirs"), base.backbone), base.backbone)
    export_peft(task, folder / "ours", base.backbone)
    back = base.load(folder / "ours", task_type, num_labels)

    assert difference(task.branch, base.backbone, theirs) <= TOLERANCE
    assert difference(task.branch, base.backbone, back) <= TOLERANCE
    return task, import_peft(Checkpoint(folder / "ours"), base.backbone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pattern keys did not match any targeted module")
@pytest.mark.filterwarnings("ignore:.*but no modules were excluded")
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    # Each example builds three models, so shrinking a failed example would take minutes.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
)
@given(
    family=st.sampled_from(("bert", "roberta")),
    head=st.sampled_from(tuple(HEADS)),
    adapter=adapters,
    seed=st.integers(0, 99),
)
def test_an_adapter_answers_alike_in_peft_imported_and_exported_back(
    bases: dict[str, PeftBase],
    tmp_path_factory: pytest.TempPathFactory,
    family: str,
    head: str,
    adapter: dict[str, Any],
    seed: int,
) -> None:
    # peft's class for question answering reads no token types, so that BERT's is refused.
    assume((family, head) != ("bert", "answers"))
    base, folder = bases[family], tmp_path_factory.mktemp("adapter")
    task_type, num_labels, problem_type = HEADS[head]
    meaning = {**id2label(num_labels), "problem_type": problem_type}
    try:
        save(
            base.train(
                LoraConfig(task_type=task_type, **adapter), num_labels=num_labels, seed=seed
            ),
            folder / "theirs",
            meaning=meaning,
        )
        base.load(folder / "theirs", task_type, num_labels)
    except (RuntimeError, TypeError, ValueError):
        assume(condition=False)  # an adapter without modules, or one that peft itself cannot load
        raise

    task, again = there_and_back(base, folder, task_type, num_labels)

    assert again.labels == task.manifest.head.labels
    assert again.problem_type == task.manifest.head.problem_type


@pytest.mark.each
@pytest.mark.parametrize("name", IA3)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_scales_answer_alike_in_peft_imported_and_exported_back(
    bases: dict[str, PeftBase], tmp_path: Path, family: str, name: str
) -> None:
    base, (targets, at_input) = bases[family], IA3[name]
    config = IA3Config(task_type="SEQ_CLS", target_modules=targets, feedforward_modules=at_input)
    save(base.train(config, num_labels=3, seed=1), tmp_path / "theirs", meaning=id2label(3))

    task, again = there_and_back(base, tmp_path, "SEQ_CLS", 3)

    assert isinstance(task.branch.spec.method, Ia3)
    assert again.spec == task.branch.spec
    assert again.parameters.keys() == task.branch.parameters.keys()
    for part, tensor in again.parameters.items():
        assert torch.equal(tensor, task.branch.parameters[part])


@pytest.mark.each
@pytest.mark.parametrize("kind", ["SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"])
@pytest.mark.parametrize("method", ["lora", "ia3"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_map_of_every_family_answers_alike_in_peft_imported_and_exported_back(
    bases: dict[str, PeftBase], tmp_path: Path, family: Family, method: str, kind: str
) -> None:
    if kind == "QUESTION_ANS" and (family in READ_TYPES or family not in ANSWERING):
        pytest.skip("no such class, or refused because peft drops the token types")
    base, maps = bases[family], PEFT_TARGETS[family]
    *_, last = maps.values()
    common: dict[str, Any] = {
        "task_type": kind,
        "target_modules": rf".*layers?\.[123]\.({'|'.join(maps.values())})",
    }
    if method == "lora":
        config = LoraConfig(r=3, lora_alpha=7, **common)
    else:
        config = IA3Config(feedforward_modules=rf".*layers?\.[123]\.{last}", **common)
    if (family, kind) == ("modernbert", "QUESTION_ANS"):
        # peft knows the head by another name.
        config.modules_to_save = ["classifier"]
    num_labels = 2 if kind == "QUESTION_ANS" else 3
    meaning = {**id2label(3), **POOLINGS.get(family, {})}
    save(base.train(config, num_labels=num_labels), tmp_path / "theirs", meaning=meaning)

    task, again = there_and_back(base, tmp_path, kind, num_labels)

    assert isinstance(task.branch.spec.method, Lora if method == "lora" else Ia3)
    assert again.spec == task.branch.spec


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "modernbert", "llama"])
def test_all_linear_maps_are_adapted_exactly(
    bases: dict[str, PeftBase], tmp_path: Path, family: str
) -> None:
    """ELECTRA has a linear map between embeddings and layers, so the task becomes a full copy.

    peft itself cannot adapt all maps of DistilBERT, because `classifier` ends `pre_classifier`.
    """
    base = bases[family]
    excluded = ["pre_classifier"] if family == "distilbert" else None
    config = LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules="all-linear", exclude_modules=excluded
    )
    meaning = {**id2label(3), **POOLINGS.get(family, {})}
    save(base.train(config, num_labels=3), tmp_path / "it", meaning=meaning)
    theirs = base.load(tmp_path / "it", "SEQ_CLS", 3)

    imported = import_peft(Checkpoint(tmp_path / "it"), base.backbone)

    assert difference(branch_of(imported, base.backbone), base.backbone, theirs) <= TOLERANCE


@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_large_ranks_equal_peft_in_one_batch_with_small_ones(
    bases: dict[str, PeftBase], tmp_path: Path, family: str
) -> None:
    """Ranks above the width of the backbone, which is 32, are as good as any."""
    base = bases[family]
    adapted: list[tuple[Branch, list[Tensor]]] = []
    for number, rank in enumerate((3, 64, 256)):
        config = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=8, target_modules="all-linear")
        theirs = base.train(config, num_labels=3, seed=number)
        folder = save(theirs, tmp_path / str(number), meaning=id2label(3))
        branch = branch_of(import_peft(Checkpoint(folder), base.backbone), base.backbone)
        adapted.append((branch, [published_logits(theirs, it) for it in ENCODINGS]))

    for served in (base.backbone, with_gpu_kernels(base.backbone)):
        branches = [convert_branch(branch, served) for branch, _ in adapted]
        rows = [Row(encoding=it, branch=branch) for branch in branches for it in ENCODINGS]
        with torch.inference_mode():
            answers = forward(served, rows)
        expected = [logits for _, each in adapted for logits in each]
        for answer, logits in zip(answers, expected, strict=True):
            assert (answer - logits).abs().max().item() <= TOLERANCE


@pytest.mark.parametrize(("activation", "score"), SCORES)
def test_a_ranking_comes_back_with_its_score(
    bases: dict[str, PeftBase], tmp_path: Path, activation: str | None, score: RankingScore
) -> None:
    base = bases["roberta"]
    key = {} if activation is None else {"activation_fn": activation}
    plain(base, tmp_path / "theirs", num_labels=1, meaning={"sentence_transformers": key})

    imported = import_peft(Checkpoint(tmp_path / "theirs"), base.backbone)
    export_peft(loaded_import(imported, base.backbone), tmp_path / "ours", base.backbone)
    again = import_peft(Checkpoint(tmp_path / "ours"), base.backbone)

    assert imported.spec.head.kind is HeadKind.RANKING
    assert (imported.score, again.score) == (score, score)
    assert again.spec == imported.spec


def test_one_logit_is_of_a_label_unless_the_folder_says_a_number(
    bases: dict[str, PeftBase], tmp_path: Path
) -> None:
    base = bases["bert"]
    folder = plain(base, tmp_path / "theirs", num_labels=1)
    assert import_peft(Checkpoint(folder), base.backbone).problem_type is ProblemType.MULTI_LABEL

    number = ImportChoices(problem_type=ProblemType.REGRESSION)
    assert (
        import_peft(Checkpoint(folder), base.backbone, number).problem_type
        is ProblemType.REGRESSION
    )


def test_question_answering_on_token_types_that_peft_drops_is_refused(
    bases: dict[str, PeftBase], tmp_path: Path
) -> None:
    base = bases["bert"]
    config = LoraConfig(task_type="QUESTION_ANS", target_modules=["query"])
    adapted = base.train(config, num_labels=2, seed=1)
    folder = save(adapted, tmp_path / "theirs", meaning={})
    pair = Encoding(token_ids=(2, 20, 3, 21, 22, 3), type_ids=(0, 0, 0, 1, 1, 1))
    answers = [published_logits(adapted, it) for it in (pair, encoded(pair.token_ids))]
    assert torch.equal(*answers), "peft reads types"

    with raises("unsupported_import", match="token types"):
        import_peft(Checkpoint(folder), base.backbone)
    task = loaded_task(
        base.backbone,
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        kind=HeadKind.QUESTION_ANSWERING,
    )
    with raises("unsupported_export", match="token types"):
        export_peft(task, tmp_path / "ours", base.backbone)


def test_an_adapter_of_another_base_is_taken_only_if_the_caller_says_so(
    bases: dict[str, PeftBase], tmp_path: Path
) -> None:
    backbone, folder = bases["bert"].backbone, plain(bases["bert"], tmp_path / "theirs")
    assert import_folder(Checkpoint(folder), backbone).base == str(bases["bert"].folder)
    choices = ImportChoices(allows_other_base=True)

    for named in ("acme/other-model", None):
        edit_json(folder / "adapter_config.json", {"base_model_name_or_path": named})
        with raises("foreign_backbone", match="--allow-other-base"):
            import_folder(Checkpoint(folder), backbone)
        it = import_folder(Checkpoint(folder), backbone, choices=choices)
        draft = draft_imported("tone", it, backbone, origin="theirs", created_at=CREATED_AT)
        assert (named or "no base named") in draft.manifest.note


def test_a_base_is_known_by_its_last_name_or_by_the_checkpoint_that_it_was_added_from(
    bases: dict[str, PeftBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    base = bases["bert"]
    folder = plain(base, tmp_path / "theirs")
    add_backbone(str(base.folder), name="mine")
    added = load_backbone("mine")

    assert (added.name, added.source) == ("mine", base.folder.name)
    assert import_folder(Checkpoint(folder), added).base == str(base.folder)
    with raises("foreign_backbone", match="--allow-other-base"):
        import_folder(Checkpoint(folder), replace(added, source="another"))
    assert import_folder(
        Checkpoint(folder), replace(added, source=f"acme/{base.folder.name}@abc")
    ).base
    for named in ("acme/Base-Model", "/models/base-model/", "C:\\models\\base-model"):
        edit_json(folder / "adapter_config.json", {"base_model_name_or_path": named})
        renamed = replace(base.backbone, name="other/base-model")
        assert import_folder(Checkpoint(folder), renamed).base == named
