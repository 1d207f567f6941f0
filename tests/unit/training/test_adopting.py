"""Laws of adoption: one training, soft targets, and evidence of the teacher in the version."""

from collections.abc import Iterator

import pytest

from doubles.backbones import tiny_backbone
from doubles.examples import rows_of, toy_examples
from doubles.refusals import raises
from nunatak_contract.cards import task_card
from nunatak_contract.enums import IntervalMethod
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Registry
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.run_settings import read_settings
from nunatak_training.teachers import TeacherChoice
from nunatak_training.train import TrainOutcome, TrainSettings, train

BACKBONE = tiny_backbone(num_layers=2)
TEXTS = [{"text": it.text} for it in toy_examples(120, seed=4)]
TESTED = rows_of(toy_examples(40, seed=5))


@pytest.fixture(name="registry", scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a full fine-tune of the toy task."""
    with Registry.open(tmp_path_factory.mktemp("registry"), create=True) as registry:
        run(registry, "big", rows_of(toy_examples(80, seed=3)), None, method="full", epochs=16)
        yield registry


def run(
    registry: Registry, task: str, data: object, teacher: TeacherChoice | None, **named: object
) -> TrainOutcome:
    settings = read_settings({"max_length": 16, "epochs": 4, **named})  # pyrefly: ignore[bad-argument-type]
    kind = TaskKind.REGRESSION if task == "values" else None
    asked = TrainSettings(task=task, data=data, settings=settings, teacher=teacher, kind=kind)  # pyrefly: ignore[bad-argument-type]
    return train(asked, registry=registry, backbone=BACKBONE)


BIG = TeacherChoice(task="big")


def test_a_full_fine_tune_teaches_a_task_that_shares_the_backbone(registry: Registry) -> None:
    outcome = run(
        registry, "small", {"train": TEXTS, "test": TESTED}, BIG, layers=1, epochs=12
    )  # fmt: skip

    manifest = outcome.manifest
    taught = manifest.teacher
    assert registry.resolve("big").split_depth is None
    assert manifest.split_depth == 1
    assert taught is not None
    assert (taught.name, taught.num_texts) == ("big/1", 160)
    assert taught.digest == registry.resolve("big").content
    assert taught.agreement.num_examples == 40
    assert taught.agreement.value > 0.75
    assert taught.agreement.interval_method is IntervalMethod.WILSON
    assert taught.score is not None
    assert taught.own_score is not None
    assert (taught.score.name, taught.own_score.name) == ("f1_macro", "f1_macro")
    assert taught.score.value > 0.75
    assert taught.score.data_digest == taught.own_score.data_digest
    card = task_card(manifest)
    for told in (
        "| teacher | big/1 (",
        "160 texts, asked in",
        "agreement (accuracy) on 40 held-out texts:",
        "of 40 labelled ones: teacher",
    ):
        assert told in card


def test_texts_without_labels_have_an_agreement_and_no_score(registry: Registry) -> None:
    manifest = run(registry, "bare", TEXTS, BIG, method="head").manifest

    taught = manifest.teacher
    assert taught is not None
    assert manifest.data is not None
    assert (taught.score, taught.own_score) == (None, None)
    assert taught.agreement.num_examples == manifest.data.num_dev
    # Without test examples, the dev examples are held out; their labels are the teacher's.
    assert taught.agreement.value == pytest.approx(manifest.metrics[0].value)


def test_probabilities_in_a_file_are_the_answers_of_the_teacher(registry: Registry) -> None:
    teacher = BIG.teacher(registry, BACKBONE)
    assert teacher is not None
    said = teacher.ask([row["text"] for row in TEXTS])
    rows = [{**row, "probabilities": it} for row, it in zip(TEXTS, said, strict=True)]

    asked = run(registry, "asked", TEXTS, BIG).manifest
    read = run(registry, "read", rows, TeacherChoice()).manifest

    assert read.blobs == asked.blobs
    assert read.teacher is not None
    assert (read.teacher.name, read.teacher.seconds) == ("data in memory", 0)


def test_the_same_adoption_is_the_same_version_however_long_the_teacher_takes(
    registry: Registry,
) -> None:
    first = run(registry, "again", TEXTS, BIG, method="head")
    again = run(registry, "again", TEXTS, BIG, method="head")

    assert (first.is_new, again.is_new) == (True, False)
    taught = first.manifest.teacher
    assert taught is not None
    slower = replace_teacher(first.manifest, seconds=taught.seconds + 1)
    other = replace_teacher(first.manifest, name="big/2")
    assert slower.content == first.manifest.content
    assert other.content != first.manifest.content


def replace_teacher(manifest: TaskManifest, **changes: object) -> TaskManifest:
    assert manifest.teacher is not None
    return manifest.model_copy(update={"teacher": manifest.teacher.model_copy(update=changes)})


def test_a_temperature_needs_a_teacher(registry: Registry) -> None:
    run(registry, "warm", TEXTS, BIG, method="head", teacher_temperature=4)
    with raises("invalid_recipe", match="teacher_temperature needs a teacher"):
        run(registry, "cold", rows_of(toy_examples(40)), None, teacher_temperature=4)
    shares = {it: {"0": at / 9, "1": 1 - at / 9} for at, it in enumerate("abcdefghij")}
    told = [{"text": it, "probabilities": said} for it, said in shares.items()]
    with raises("invalid_recipe", match="not of values"):
        run(registry, "values", told, TeacherChoice(), teacher_temperature=4)


def test_a_value_is_adopted_with_its_rank_correlation(registry: Registry) -> None:
    rows = [
        {"text": it.text, "label": 1.5 if it.label == "late" else -1.25 + place / 100}
        for place, it in enumerate(toy_examples(60, seed=6))
    ]
    run(registry, "level", rows, None, epochs=2)

    taught = run(registry, "level-small", TEXTS, TeacherChoice(task="level")).manifest

    assert taught.teacher is not None
    assert taught.teacher.agreement.name == "spearman"
    assert taught.head == registry.resolve("level").head


def test_a_teacher_of_several_labels_is_scored_by_its_own_thresholds(registry: Registry) -> None:
    examples = enumerate(toy_examples(140, seed=7))
    rows = [
        {"text": it.text, "labels": [str(it.label)] * (at % 3 > 0) + ["third"] * (at % 3 == 0)}
        for at, it in examples
    ]
    tested = {"train": TEXTS, "test": rows[70:]}
    settings = {"calibrate": True, "thresholds": "f1", "epochs": 2, "layers": 1}
    several = run(registry, "several", {"train": rows[:70], "dev": rows[70:]}, None, **settings)

    taught = run(registry, "one", tested, TeacherChoice(task="several"), method="head").manifest

    thresholds = several.manifest.head.thresholds
    assert min(thresholds.values()) < 0.45
    assert taught.head.thresholds == thresholds
    assert taught.teacher is not None
    assert taught.teacher.score is not None
    recorded = {it.name: it.value for it in several.manifest.metrics}
    assert taught.teacher.score.value == pytest.approx(recorded[Metric.F1_MACRO])
