"""The task card of a version in Markdown."""

import re
from datetime import UTC, datetime

import pytest
from pydantic import JsonValue

from doubles.drafts import make_draft
from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_contract.cards import (
    Compared,
    compare,
    confusion_matrix,
    first_labels,
    saved_share,
    task_card,
    worst_mistakes,
)
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.evidence import (
    ConfusionCell,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    RecipeRecord,
)
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import visible

DIGEST = "d" * 64


def manifest_of(**changes: object) -> TaskManifest:
    draft, _ = make_draft()
    return TaskManifest.model_validate({**draft.model_dump(), "version": 3, **changes})


def confused(*cells: tuple[str, str, int]) -> ConfusionRecord:
    return ConfusionRecord(
        data_digest=DIGEST,
        cells=tuple(ConfusionCell(truth=t, predicted=p, count=n) for t, p, n in cells),
    )


def many_labels(*cells: tuple[str, str, int]) -> TaskManifest:
    head = HeadRecord(
        labels=tuple(f"label {i}" for i in range(40)), pooling=Pooling.MEAN, dense=False
    )
    return manifest_of(head=head, confusion=confused(*cells))


def scored(**scores: float) -> tuple[MetricRecord, ...]:
    return tuple(
        MetricRecord(name=name, value=value, data_digest="d" * 64, num_examples=3)
        for name, value in scores.items()
    )


def trained(**settings: JsonValue) -> RecipeRecord:
    return RecipeRecord(settings=settings, digest="e" * 64)


def by_name(left: TaskManifest, right: TaskManifest) -> dict[str, Compared]:
    return {row.name: row for row in compare(left, right)}


def test_card_says_what_was_trained_on_what_and_how_well() -> None:
    card = task_card(
        manifest_of(
            metrics=(
                MetricRecord(name="accuracy", value=0.91, data_digest=DIGEST, num_examples=1234),
            ),
            data=DataRecord(
                name="mail", train_digest="a" * 64, dev_digest=DIGEST, num_train=9, num_dev=3
            ),
            recipe=RecipeRecord(settings={"seed": 7, "dense": None}, digest="e" * 64),
            confusion=confused(("no", "no", 5), ("no", "yes", 2), ("yes", "yes", 9)),
            created_at=datetime(2026, 2, 3, tzinfo=UTC),
        )
    )

    for line in (
        "# intent",
        "| labels (2) | no, yes |",
        "| shared layers | 2 of 2 |",
        r"| created | 2026\-02-03 00:00:00 UTC |",
        f"| accuracy | 0.9100 | 1,234 | `{DIGEST}` |",
        "| no | 5 | 2 |",
        "| yes | 0 | 9 |",
        f"| train | 9 | `{'a' * 64}` |",
        "| seed | 7 |",
        'nunatak predict "some text" --task intent',
    ):
        assert line in card.splitlines()


def test_card_of_an_imported_version_says_what_is_not_known() -> None:
    card = task_card(manifest_of())

    assert "None recorded." in card
    assert card.count("Not recorded.") == 2
    assert "Confusion" not in card


def test_card_says_where_the_version_is_pulled_from() -> None:
    assert "nunatak task pull me/intent --task intent" in task_card(
        manifest_of(), source="me/intent"
    )


def test_every_kind_of_head_has_its_call() -> None:
    answering = HeadRecord(
        kind=HeadKind.QUESTION_ANSWERING, problem_type=None, labels=(), pooling=None, dense=False
    )
    ranking = HeadRecord(
        kind=HeadKind.RANKING, problem_type=None, labels=(), pooling=Pooling.MEAN, dense=False
    )

    assert "--question" in task_card(manifest_of(head=answering))
    assert "--document" in task_card(manifest_of(head=ranking))


def test_rows_of_the_matrix_are_true_labels() -> None:
    matrix = confusion_matrix(manifest_of(confusion=confused(("no", "yes", 2))))

    assert matrix == [[0, 2], [0, 0]]


def test_of_many_labels_only_the_worst_mistakes_are_shown() -> None:
    cells = [(f"label {i}", f"label {i + 1}", i + 1) for i in range(20)]
    manifest = many_labels(("label 0", "label 0", 99), *cells)

    assert confusion_matrix(manifest) is None
    assert [mistake.count for mistake in worst_mistakes(manifest)] == list(range(20, 10, -1))
    assert "| label 19 | label 20 | 20 |" in task_card(manifest)
    assert "No mistakes." in task_card(many_labels(("label 0", "label 0", 99)))


def test_what_is_saved_needs_the_size_of_the_backbone() -> None:
    draft, _ = make_draft()
    sized = draft.backbone.model_copy(update={"num_parameters": 990})

    assert saved_share(manifest_of()) is None
    # The head has 10 parameters, so the version owns 10 of 1,000.
    assert saved_share(manifest_of(backbone=sized)) == pytest.approx(0.99)
    assert "99.0% of the parameters" in task_card(manifest_of(backbone=sized))


@pytest.mark.parametrize(
    "text",
    [
        *(HOSTILE, "<script>x</script>|<b>", "- list", "1. list", "---", "a|b", "[x](http://y)"),
        *("`code`", "# h", "x\n\n# y", "*"),
    ],
)
def test_no_text_of_others_is_read_as_markdown_or_by_a_terminal(text: str) -> None:
    labels = ("no", visible(" ".join(text.split())))
    card = task_card(
        manifest_of(
            head=HeadRecord(labels=labels, pooling=Pooling.MEAN, dense=False),
            confusion=confused(("no", labels[1], 2)),
            note=text,
            backbone={**make_draft()[0].backbone.model_dump(), "name": text},
            metrics=(MetricRecord(name=text[:64], value=0.9, data_digest=DIGEST, num_examples=1),),
            data=DataRecord(
                name=text, train_digest=DIGEST, dev_digest=DIGEST, num_train=9, num_dev=3
            ),
            recipe=RecipeRecord(settings={text: text}, digest=DIGEST),
        )
    )

    assert obeyed(card) == set()
    plain = re.sub(r"\\.", "", card)
    assert [line for line in plain.splitlines() if line.startswith("# ")] == ["# intent"]
    assert not re.search(r"[<>\[\]*]", plain.replace("[95 % interval]", ""))
    assert not re.search(r"^(?:\d+\. |[-+=])", card, re.MULTILINE)
    tables = [line for line in plain.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} <= {3, 4, 5}
    (metric,) = (line for line in tables if "0.9000" in line)
    assert metric.count("|") == 5


def test_a_version_does_not_differ_from_itself() -> None:
    manifest = manifest_of(metrics=scored(accuracy=0.5), recipe=trained(seed=1))

    assert not any(row.differs for row in compare(manifest, manifest))


def test_scores_of_either_version_are_shown_with_their_change() -> None:
    rows = by_name(
        manifest_of(metrics=scored(accuracy=0.5, f1=0.4)),
        manifest_of(metrics=scored(accuracy=0.75, matthews=0.1)),
    )

    assert rows["metric accuracy"].change == 0.25
    assert (rows["metric f1"].left, rows["metric f1"].right) == (0.4, None)
    assert rows["metric matthews"].change is None


def test_of_the_recipes_only_what_differs_is_shown() -> None:
    rows = by_name(
        manifest_of(recipe=trained(seed=1, epochs=2, method={"kind": "head"})),
        manifest_of(recipe=trained(seed=1, epochs=3, dense=True, method={"kind": "full"})),
    )

    assert {name for name in rows if name.startswith("recipe")} == {"recipe epochs", "recipe dense"}
    assert rows["recipe dense"].change is None


def test_labels_in_another_order_are_other_labels() -> None:
    head = manifest_of().head

    rows = by_name(
        manifest_of(), manifest_of(head=head.model_copy(update={"labels": ("yes", "no")}))
    )

    assert rows["labels"].differs


def test_a_label_with_a_comma_is_listed_as_one() -> None:
    assert first_labels(("a, b", "c", "d"), 2) == "'a, b', c and 1 more"
