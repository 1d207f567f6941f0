"""Two versions side by side."""

from pydantic import JsonValue

from doubles.drafts import make_draft
from nunatak_contract.cards import Compared, compare
from nunatak_contract.evidence import MetricRecord, RecipeRecord
from nunatak_contract.manifest import TaskManifest


def manifest_of(**changes: object) -> TaskManifest:
    draft, _ = make_draft()
    return TaskManifest.model_validate({**draft.model_dump(), "version": 1, **changes})


def scored(**scores: float) -> tuple[MetricRecord, ...]:
    return tuple(
        MetricRecord(name=name, value=value, data_digest="d" * 64, num_examples=3)
        for name, value in scores.items()
    )


def trained(**settings: JsonValue) -> RecipeRecord:
    return RecipeRecord(settings=settings, digest="e" * 64)


def by_name(left: TaskManifest, right: TaskManifest) -> dict[str, Compared]:
    return {row.name: row for row in compare(left, right)}


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
