from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import load_test_set, toy_data, write_jsonl
from doubles.refusals import raises
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_model import Encoding
from nunatak_training.cache import cache_contents, clear_cache
from nunatak_training.data import Example, ExampleSet, TaskData
from nunatak_training.fitting import TrainedTask, check_recipe, fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.checkpoint import SavedState, held_checkpoint
from nunatak_training.publishing import default_label_of
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report
from nunatak_training.run_settings import read_settings
from nunatak_training.train import choose_layers
from nunatak_training.trunk import DiskTrunkStore

NUM_LAYERS = 6
BACKBONE = tiny_backbone(num_layers=NUM_LAYERS)
QUICK: dict[str, JsonValue] = {"epochs": 1, "max_length": 16}
TEMPLATE = fit_task(
    toy_data(num_train=8, num_dev=4),
    default_recipe(HeadOnly(), changes=QUICK),
    BACKBONE,
    report=Report(),
)


def layers_of(recipe: Recipe) -> int | None:
    match recipe.method:
        case HeadOnly():
            return 0
        case TopK(num_layers=num_layers):
            return num_layers
        case _:
            return None


def scripted(score_of: Callable[[int], float], *, full: float = 0.8) -> Callable[..., TrainedTask]:
    """A run with a known score; the full run scores `full`."""

    def run(recipe: Recipe) -> TrainedTask:
        layers = layers_of(recipe)
        score = full if layers is None else score_of(layers)
        scores = {
            metric: it.model_copy(update={"value": score}) for metric, it in TEMPLATE.scores.items()
        }
        return replace(TEMPLATE, recipe=recipe, scores=scores)

    return run


def chosen(run: Callable[..., TrainedTask], **changes: JsonValue) -> Recipe:
    settings = read_settings({"layers": "auto", "target": 0.95, **QUICK, **changes})
    return choose_layers(BACKBONE, run, settings).recipe


def data_of(*labels: str) -> TaskData:
    examples = tuple(Example(text=f"text {n}", label=label) for n, label in enumerate(labels))
    both = ExampleSet(examples=examples)
    return TaskData(name="data", train=both, dev=both, labels=tuple(sorted(set(labels))))


@pytest.mark.parametrize("needed", range(NUM_LAYERS + 1))
def test_the_fewest_layers_that_keep_the_target_are_found_in_few_runs(needed: int) -> None:
    asked = list[int | None]()
    run = scripted(lambda layers: 0.76 if layers >= needed else 0.75)

    def counted(recipe: Recipe) -> TrainedTask:
        asked.append(layers_of(recipe))
        return run(recipe)

    found = chosen(counted)

    assert asked[0] is None  # the full run, for comparison
    assert layers_of(found) == needed
    assert found.layer_choice is not None
    assert found.layer_choice.layers == needed
    assert [each.layers for each in found.layer_choice.runs] == asked[1:]
    assert len(found.layer_choice.runs) <= 3  # out of seven numbers of layers


def test_a_target_that_all_layers_miss_is_an_error_that_tells_what_was_tried() -> None:
    with raises("target_missed", match=r"6 layers 0\.5000") as caught:
        chosen(scripted(lambda _: 0.5))

    assert caught.value.fields["full_score"] == 0.8
    assert "tried: 3 layers 0.5000, 5 layers 0.5000, 6 layers 0.5000. Lower" in str(caught.value)


def test_full_fine_tuning_that_learns_nothing_has_no_share_to_keep() -> None:
    with raises("target_missed", match="no basis for a share"):
        chosen(scripted(lambda _: 0.9, full=0.0))


def test_numbers_of_layers_that_the_regularizer_cannot_use_are_left_out() -> None:
    found = chosen(scripted(lambda _: 0.9), regularizer={"name": "gradfreeze-topdown"}, epochs=2)

    assert layers_of(found) == 2


def test_a_head_alone_is_left_out_where_pretraining_needs_layers_to_move() -> None:
    found = chosen(scripted(lambda _: 0.9), tapt={"epochs": 1})

    assert layers_of(found) == 1


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    contents = cache_contents(tmp_path / "absent")

    assert (contents.states, contents.checkpoints, contents.num_bytes) == ((), (), 0)


def test_clearing_leaves_only_the_checkpoint_that_is_in_use(tmp_path: Path) -> None:
    wanted = [Encoding(token_ids=(5, 6), type_ids=(0, 0))]
    backbone, progress = tiny_backbone(num_layers=2), Report().prepared
    DiskTrunkStore(tmp_path).states(backbone, wanted, depth=1, progress=progress)
    snapshot = SavedState(tensors={}, facts="{}")
    with held_checkpoint("killed", tmp_path) as checkpoint:
        checkpoint.save(snapshot)
    with held_checkpoint("running", tmp_path) as checkpoint:
        checkpoint.save(snapshot)
        before = cache_contents(tmp_path)

        after = clear_cache(tmp_path)

    assert (len(before.states), len(before.checkpoints)) == (1, 2)
    assert before.num_bytes > 2 * 32 * 4
    assert after.states == ()
    assert [stored.path.stem for stored in after.checkpoints] == ["running"]
    assert after.num_bytes > 0
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"running.safetensors", "running.lock"}


def test_what_a_kill_amid_writing_left_is_counted_and_cleared(tmp_path: Path) -> None:
    with held_checkpoint("killed", tmp_path):
        (tmp_path / "checkpoints" / "killed.safetensors.partial").write_bytes(b"x" * 100)

    before = cache_contents(tmp_path)
    after = clear_cache(tmp_path)

    assert before.num_bytes == 100
    assert (after.checkpoints, after.num_bytes) == ((), 0)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("labels", "named", "default"),
    [
        (("a", "b", "b", "b"), None, "b"),
        (("a", "b", "b"), None, None),
        (("b", "a", "b", "a"), None, None),
        (("a", "b", "b"), "a", "a"),
        (("a", "b", "b", "c"), None, None),
        (("a", "b", "b", "c"), "c", "c"),
        (("a", "b", "b"), "none", None),
        (("a", "b", "none"), "none", "none"),
    ],
)
def test_the_default_label_is_the_named_one_or_of_two_the_far_more_frequent(
    labels: tuple[str, ...], named: str | None, default: str | None
) -> None:
    recipe = default_recipe(HeadOnly(), changes={"default_label": named, "max_length": 16})
    check_recipe(recipe, data_of(*labels), tiny_backbone())

    assert default_label_of(data_of(*labels), recipe) == default


FEW, UNKNOWN = "too_few_examples", "unknown_label"
NEVER = r"far\.jsonl:1: label 'never'"
NO_GRADE = [{"query": "a", "document": "b", "label": 0}]


@pytest.mark.parametrize(
    ("kind", "rows", "code", "problem"),
    [
        (TaskKind.SINGLE_LABEL, [], FEW, "there are no test examples"),
        (TaskKind.RANKING, NO_GRADE, FEW, "no test document has a grade above 0"),
        (TaskKind.SINGLE_LABEL, [{"text": "a b", "label": "never"}], UNKNOWN, NEVER),
        (TaskKind.MULTI_LABEL, [{"text": "a b", "labels": ["a", "never"]}], UNKNOWN, NEVER),
        (TaskKind.TOKEN_CLASSIFICATION, [{"tokens": ["a"], "tags": ["never"]}], UNKNOWN, NEVER),
    ],
)
def test_test_set_that_nothing_can_be_scored_on_or_with_a_label_of_its_own_is_refused(
    tmp_path: Path, kind: TaskKind, rows: list[dict[str, object]], code: str, problem: str
) -> None:
    path = write_jsonl(tmp_path / "far.jsonl", rows)
    none = ExampleSet(examples=())
    data = TaskData(name="toy", kind=kind, train=none, dev=none, labels=("a", "b"))

    with raises(code, match=problem):
        load_test_set(path, data)
