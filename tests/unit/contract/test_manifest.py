from datetime import timedelta

import pytest
from pydantic import ValidationError

from doubles.drafts import make_draft
from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_contract.cards import head_text
from nunatak_contract.enums import OnLong, Pooling, ProblemType, Reads
from nunatak_contract.evidence import ConfusionCell, ConfusionRecord, ProbeRecord
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_contract.plain_text import visible


def make_manifest(version: int = 3) -> TaskManifest:
    draft, _ = make_draft()
    return TaskManifest.model_validate({**draft.model_dump(), "version": version})


def test_a_manifest_names_its_version_and_finds_blobs_by_role() -> None:
    manifest = make_manifest(version=3)

    assert manifest.reference == "intent/3"
    assert manifest.blob("parameters") == manifest.blobs[0]
    assert manifest.blob("tokenizer") is None


def test_content_digest_ignores_the_time_of_creation_and_the_version() -> None:
    draft, _ = make_draft()
    later = draft.model_copy(update={"created_at": draft.created_at + timedelta(days=1)})

    assert later.content_digest() == draft.content_digest()
    assert make_manifest(1).content_digest() == make_manifest(2).content_digest()
    assert make_manifest(1).content_digest() == draft.content_digest()


def test_content_without_later_fields_keeps_the_digest_it_has_always_had() -> None:
    draft, _ = make_draft()

    assert draft.content_digest() == (
        "1dab78ae0a14b7c2d53a51a84a680aa0de53d78912b490c6ce4dbf2e9dbd04e3"
    )


def test_content_digest_sees_all_content_also_what_was_measured() -> None:
    draft, _ = make_draft()
    cell = ConfusionCell(truth="no", predicted="yes", count=1)
    sized = draft.backbone.model_copy(update={"num_parameters": 5})
    others = [
        make_draft(task="other")[0],
        make_draft(seed=1)[0],
        draft.model_copy(
            update={"confusion": ConfusionRecord(data_digest="d" * 64, cells=(cell,))}
        ),
        draft.model_copy(update={"backbone": sized}),
    ]

    assert len({it.content_digest() for it in (draft, *others)}) == 5


def test_content_digest_sees_the_score_of_a_ranking_unless_it_is_the_default() -> None:
    fields = {**head(kind="ranking", problem_type=None, labels=[])}
    plain, sigmoid, logits = (
        HeadRecord.model_validate({**fields, **score})
        for score in ({}, {"score": "sigmoid"}, {"score": "none"})
    )

    assert "score" not in plain.model_dump()
    assert plain == sigmoid
    assert plain.model_dump_json() != logits.model_dump_json()
    assert (head_text(plain), head_text(logits)) == ("ranking", "ranking, scored by its logits")


@pytest.mark.parametrize(
    "cells", [[("no", "yes", 1), ("no", "yes", 2)], [("no", "maybe", 1)], [("no", "yes", 0)], []]
)
def test_malformed_confusion_matrix_is_refused(cells: list[tuple[str, str, int]]) -> None:
    draft, _ = make_draft()
    named = [dict(zip(("truth", "predicted", "count"), cell, strict=True)) for cell in cells]

    with pytest.raises(ValidationError):
        TaskDraft.model_validate(
            {**draft.model_dump(), "confusion": {"data_digest": "d" * 64, "cells": named}}
        )


CURVES = [{"label": label, "num_expected": 1, "points": [[0.5, 2, 1]]} for label in ("no", "yes")]


@pytest.mark.parametrize(
    ("curves", "changes", "problem"),
    [
        (CURVES[:1], {}, "one curve for each label"),
        (CURVES[::-1], {}, "in their order"),
        ([{**CURVES[0], "points": [[0.5, 2, 2]]}, CURVES[1]], {}, "finds 2 right"),
        ([{**CURVES[0], "points": [[0.5, 2, 1], [0.6, 2, 1]]}, CURVES[1]], {}, "must fall"),
        (CURVES[:1], {"problem_type": "regression", "labels": ["no"]}, "classifies whole texts"),
    ],
)
def test_malformed_calibration_is_refused(
    curves: list[dict[str, object]], changes: dict[str, object], problem: str
) -> None:
    draft, _ = make_draft()
    bins = [{"count": 4, "score": 0.5, "share_right": 0.5}]
    dev = {"data_digest": "d" * 64, "num_examples": 4, "error_before": 0, "error_after": 0}
    dev |= {"bins_before": bins, "bins_after": bins}
    calibration = {"temperature": 2.0, "dev": dev, "curves": curves}
    fields = {**draft.model_dump(), "calibration": calibration}

    with pytest.raises(ValidationError, match=problem):
        TaskDraft.model_validate({**fields, "head": {**draft.head.model_dump(), **changes}})


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"schema_version": 2},
        {"task": "../x"},
        {"task": "intent\n"},
        pytest.param({"tokenizer_digest": "C" * 64}, id="upper-case-digest"),
        {"blobs": ()},
        {"split_depth": -1},
        {"method": {"kind": "pickle"}},
        {"version": 0},
        *(
            pytest.param({"method": {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": [it]}})
            for it in ("imports.os", "QUERY", "query ", "")
        ),
    ],
)
def test_invalid_manifest_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TaskManifest.model_validate({**make_manifest().model_dump(), **change})


def head(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "kind": "sequence_classification",
        "problem_type": "single_label_classification",
        "labels": ["a", "b"],
        "pooling": "mean",
        "dense": False,
    }
    return fields | changes


TOKEN_HEAD: dict[str, object] = {"problem_type": None, "pooling": None}
GELU_BLOCK: dict[str, object] = {"activation": "gelu", "bias": False, "norm": "gain"}


@pytest.mark.parametrize(
    ("fields", "num_outputs"),
    [
        (head(), 2),
        (head(problem_type="multi_label_classification"), 2),
        (head(problem_type="multi_label_classification", labels=["a"]), 1),
        (head(problem_type="regression", labels=["stars"]), 1),
        (head(kind="token_classification", **TOKEN_HEAD), 2),
        (head(kind="question_answering", **TOKEN_HEAD, labels=[]), 2),
        (head(kind="ranking", problem_type=None, labels=[]), 1),
        (head(kind="ranking", problem_type=None, labels=[], score="none"), 1),
        (head(dense=True, block=GELU_BLOCK), 2),
    ],
)
def test_every_kind_of_head_has_its_outputs(fields: dict[str, object], num_outputs: int) -> None:
    record = HeadRecord.model_validate(fields)

    assert record.num_outputs == num_outputs
    assert HeadRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (head(labels=["a"]), "2 to 10000 labels"),
        (head(labels=["a", "a"]), "unique"),
        (head(problem_type="regression"), "1 to 1 labels"),
        (head(problem_type=None), "problem_type"),
        (head(pooling=None), "pooling"),
        (head(kind="ranking", problem_type=None), "0 to 0 labels"),
        (head(kind="ranking", labels=[]), "problem_type"),
        (head(kind="token_classification", problem_type=None), "pooling"),
        (head(kind="question_answering", **TOKEN_HEAD), "0 to 0 labels"),
        (head(dense=False, block=GELU_BLOCK), "not dense"),
        (head(score="none"), "only a ranking has a score"),
        (head(kind="translation"), "kind"),
    ],
)
def test_a_head_that_contradicts_its_kind_is_refused(
    fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        HeadRecord.model_validate(fields)


def test_a_head_of_before_there_were_kinds_reads_the_same() -> None:
    record = HeadRecord.model_validate_json('{"labels":["a","b"],"pooling":"mean","dense":true}')

    assert record.model_dump(mode="json") == head(dense=True)


@pytest.mark.parametrize(
    ("logits", "reason"),
    [
        (((0.0,), (1.0,)), "1 probe inputs, but 2 logit rows"),
        (((float("nan"),),), "finite number"),
        ((((0.0, 1.0), (2.0,)),), "equally many"),
    ],
)
def test_a_probe_has_logits_of_one_shape_for_each_input(logits: object, reason: str) -> None:
    probe = ProbeRecord(inputs=("a",), logits=(((0.0, 1.0), (2.0, 3.0)),))

    assert ProbeRecord.model_validate_json(probe.model_dump_json()) == probe
    with pytest.raises(ValidationError, match=reason):
        ProbeRecord.model_validate({"inputs": ("a",), "logits": logits})


def test_a_manifest_reads_what_its_head_can_read() -> None:
    fields = make_manifest().model_dump()
    answers = head(kind="question_answering", **TOKEN_HEAD, labels=[])
    tokens = {"head": head(kind="token_classification", **TOKEN_HEAD)}

    assert make_manifest().reads is None
    assert "reads" not in fields
    assert TaskManifest.model_validate({**fields, "reads": "pair"}).reads is Reads.PAIR
    with pytest.raises(ValidationError, match="only sequence classification"):
        TaskManifest.model_validate({**fields, **tokens, "reads": "pair"})
    with pytest.raises(ValidationError, match="at least 8"):
        TaskManifest.model_validate({**fields, "head": answers, "max_length": 7})


@pytest.mark.parametrize("control", sorted(obeyed(HOSTILE) | {"\n"}))
def test_a_label_of_control_characters_is_refused_in_visible_form(control: str) -> None:
    with pytest.raises(ValidationError) as refused:
        HeadRecord(labels=("no", f"y{control}s"), pooling=Pooling.MEAN, dense=False)

    message = str(refused.value)
    assert f"got 'y{visible(control)}s'; rename the label" in message
    assert obeyed(message) == set()


def test_a_label_may_be_any_text_on_one_line() -> None:
    labels = ("non lié", "[bold]", "</b>", "שלום", "東京\N{IDEOGRAPHIC SPACE}都", "👩\u200d💻")

    assert HeadRecord(labels=labels, pooling=Pooling.MEAN, dense=False).labels == labels


def test_a_default_label_is_a_label_of_a_task_with_one_label_a_text() -> None:
    head = make_draft()[0].head
    fields = head.model_dump()
    first = head.labels[0]

    assert HeadRecord.model_validate({**fields, "default_label": first}).default_label == first
    with pytest.raises(ValidationError, match="must be a label"):
        HeadRecord.model_validate({**fields, "default_label": "other"})
    several = {"problem_type": ProblemType.MULTI_LABEL, "default_label": first}
    with pytest.raises(ValidationError, match="one label"):
        HeadRecord.model_validate({**fields, **several})


def test_what_becomes_of_long_texts_is_left_out_of_content_that_does_not_say_it() -> None:
    draft, _ = make_draft()
    chosen = draft.model_copy(update={"on_long": OnLong.REFUSE})

    assert (draft.reads_long, chosen.reads_long) == (OnLong.WINDOWS, OnLong.REFUSE)
    assert not {"on_long", "default_label"} & {*draft.model_dump(), *draft.model_dump()["head"]}
    assert chosen.content_digest() != draft.content_digest()


def test_a_label_without_a_threshold_applies_from_one_half() -> None:
    several = head(problem_type="multi_label_classification", labels=["a", "b"])
    plain = HeadRecord.model_validate(several)
    tuned = HeadRecord.model_validate({**several, "thresholds": {"b": 0.2}})

    assert [plain.threshold(label) for label in plain.labels] == [0.5, 0.5]
    assert [tuned.threshold(label) for label in tuned.labels] == [0.5, 0.2]
    assert "thresholds" not in plain.model_dump()
    assert HeadRecord.model_validate_json(tuned.model_dump_json()) == tuned


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"thresholds": {"c": 0.2}}, "must be of a label, got 'c'"),
        ({"thresholds": {"a": 1.1}}, "less than or equal to 1"),
        ({"thresholds": {"a": -0.1}}, "greater than or equal to 0"),
        ({"thresholds": {"a": float("nan")}}, "thresholds"),
        (
            {"problem_type": "single_label_classification", "thresholds": {"a": 0.2}},
            "several labels has thresholds",
        ),
    ],
)
def test_a_threshold_is_a_score_of_a_label_of_a_multi_label_task(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        HeadRecord.model_validate(head(problem_type="multi_label_classification") | changes)
