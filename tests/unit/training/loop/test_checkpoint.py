"""Laws of resuming: from any step, with any optimizer and regularizer, to the same bytes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, toy_data
from doubles.killed import EveryTime, Killed, Mortal
from doubles.refusals import raises
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Method, TopK
from nunatak_model import tensors_to_bytes
from nunatak_training.cache import SUFFIX
from nunatak_training.data.examples import Teacher
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.checkpoint import SavedRun, SavedState, held_checkpoint, run_key
from nunatak_training.recipes import Recipe, RegularizerName, default_recipe

BACKBONE = tiny_backbone(num_layers=2)
DATA = toy_data(num_train=30)
TEACHER = Teacher(
    name="old/1", digest="0" * 64, kind=DATA.kind, labels=DATA.labels, ask=lambda _: ()
)


def recipe_of(method: Method, **changes: JsonValue) -> Recipe:
    quick: dict[str, JsonValue] = {"epochs": 3, "min_steps": 0, "batch_size": 10, "max_length": 32}
    return default_recipe(method, changes={**quick, **changes})


def weights(
    recipe: Recipe, report: RecordingReport, checkpoint: SavedRun | None = None
) -> tuple[bytes, int, list[float]]:
    trained = fit_task(DATA, recipe, BACKBONE, report=report, checkpoint=checkpoint)
    scores = [epoch.dev_loss for epoch in trained.history]
    return tensors_to_bytes(trained.parameters), trained.best_epoch, scores


RECIPES = [
    *(recipe_of(TopK(num_layers=2), regularizer={"name": name.value}) for name in RegularizerName),
    recipe_of(TopK(num_layers=1), optimizer="sgd", schedule="cosine", warmup_share=0.5),
    recipe_of(HeadOnly(), optimizer="adam", schedule="constant"),
    recipe_of(Bottleneck(size=4), dropout=0.3),
    recipe_of(Bottleneck(size=4), precision="bfloat16"),
    recipe_of(Full(), seed=3),
]


def label(recipe: Recipe) -> str:
    return f"{recipe.method.kind}-{recipe.regularizer.name}-{recipe.optimizer}-{recipe.precision}"


@pytest.mark.parametrize("recipe", RECIPES, ids=label)
def test_a_run_that_dies_again_and_again_gives_the_bytes_of_one_that_does_not(
    tmp_path: Path, recipe: Recipe
) -> None:
    checkpoint = EveryTime(tmp_path / "run.safetensors")
    resumed = list[int]()

    # The steps lie in the first epoch, and around the end of a later one.
    for dies_at in (2, 6, 7):
        report = Mortal(dies_at=dies_at)
        with pytest.raises(Killed):
            weights(recipe, report, checkpoint)
        resumed.append(report.num_resumed)
    last = RecordingReport()
    found = weights(recipe, last, checkpoint)

    # The report of a step killed the run before the step was written, so the step runs again.
    assert [*resumed, last.num_resumed] == [0, 1, 5, 6]
    assert found == weights(recipe, RecordingReport())


def test_a_run_that_dies_ends_after_the_epoch_that_ends_the_run_that_does_not(
    tmp_path: Path,
) -> None:
    recipe = recipe_of(TopK(num_layers=1), epochs=12, patience=2)
    whole = RecordingReport()
    expected = weights(recipe, whole, EveryTime(tmp_path / "whole.safetensors"))
    num_steps = len(whole.losses)
    assert num_steps < 12 * 3, "patience must end this run, or the test shows nothing"

    for dies_at in (1, num_steps - 3, num_steps):
        checkpoint = EveryTime(tmp_path / f"{dies_at}.safetensors")
        with pytest.raises(Killed):
            weights(recipe, Mortal(dies_at=dies_at), checkpoint)
        resumed = RecordingReport()
        assert weights(recipe, resumed, checkpoint) == expected
        assert resumed.num_resumed + len(resumed.losses) == num_steps
        # The checkpoint on disk says that the run is over, so no further step is computed.
        again = RecordingReport()
        assert weights(recipe, again, checkpoint) == expected
        assert again.losses == []


class DiesAfter(RecordingReport):
    """Ends the run within the report of a given step, of pretraining or tuning."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._num_steps = num_steps

    def stepped(self, *, loss: float) -> None:
        super().stepped(loss=loss)
        if len(self.losses) == self._num_steps:
            raise Killed


@pytest.mark.parametrize("regularizer", ["none", "mixout"])
def test_pretraining_that_dies_goes_on_and_is_not_done_again_once_it_is_over(
    tmp_path: Path, regularizer: str
) -> None:
    recipe = recipe_of(
        Bottleneck(size=4), epochs=2, tapt={"epochs": 2}, regularizer={"name": regularizer}
    )
    path = tmp_path / "run.safetensors"

    # Pretraining and tuning take 6 steps each. The kills are within pretraining, at its last step,
    # and twice within tuning.
    for num_steps in (3, 4, 2, 3):
        with pytest.raises(Killed):
            weights(recipe, DiesAfter(num_steps), EveryTime(path))
    last = RecordingReport()
    found = weights(recipe, last, EveryTime(path))

    # The report of a step killed the run before the step was written. So the runs keep 2 steps of
    # pretraining, then 5, then all steps of pretraining, then also 2 steps of tuning.
    assert len(last.losses) == 6 - 2
    assert found == weights(recipe, RecordingReport())


def test_what_pretraining_left_is_discarded_with_the_run(tmp_path: Path) -> None:
    recipe = recipe_of(Bottleneck(size=4), epochs=1, tapt={"epochs": 1})
    with held_checkpoint("run", tmp_path) as checkpoint:
        weights(recipe, RecordingReport(), checkpoint)
        checkpoint.discard()

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["run.lock"]


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign"])
def test_a_checkpoint_that_cannot_be_read_costs_time_and_nothing_else(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "run.safetensors"
    recipe, report = recipe_of(HeadOnly()), RecordingReport()
    expected = weights(recipe, RecordingReport(), EveryTime(path))
    match damage:
        case "cut":
            path.write_bytes(path.read_bytes()[:-10])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_bytes(tensors_to_bytes({"other": torch.zeros(2)}))

    assert weights(recipe, report, EveryTime(path)) == expected
    assert report.num_resumed == 0


def test_checkpoints_are_as_far_apart_as_the_interval_or_what_they_cost(tmp_path: Path) -> None:
    # The clock is read three times per save: for the check, before the write, and after the write.
    times = iter([0.0, 9.0, 10.0, 10.0, 12.0, 51.0, 52.0])
    checkpoint = SavedRun(tmp_path / "run.safetensors", interval=10.0, clock=lambda: next(times))
    state = SavedState(tensors={"weight": torch.ones(2)}, facts="{}")

    due = [checkpoint.is_due, checkpoint.is_due]
    checkpoint.save(state)  # takes 2 s, so the next save is due after 40 s and not after 10 s
    due += [checkpoint.is_due, checkpoint.is_due]

    assert due == [False, True, False, True]


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    began, now = before + 2, before + 1
    try:
        torch.set_num_threads(began)
        with held_checkpoint("run", tmp_path) as checkpoint:
            assert checkpoint.num_threads is None
            checkpoint.save(SavedState(tensors={"weight": torch.ones(2)}, facts="{}"))
        torch.set_num_threads(now)

        with held_checkpoint("run", tmp_path) as checkpoint:
            assert checkpoint.num_threads == began
            assert torch.get_num_threads() == began
        assert torch.get_num_threads() == now
        with held_checkpoint("run", tmp_path) as checkpoint:
            checkpoint.discard()
        with held_checkpoint("run", tmp_path):
            assert torch.get_num_threads() == now
    finally:
        torch.set_num_threads(before)


def test_a_run_has_one_name_whatever_number_of_threads_is_free() -> None:
    before = torch.get_num_threads()
    recipe = recipe_of(HeadOnly())
    first = run_key({"tone": DATA}, recipe, BACKBONE)
    try:
        torch.set_num_threads(before + 1)
        assert run_key({"tone": DATA}, recipe, BACKBONE) == first
    finally:
        torch.set_num_threads(before)


def test_one_run_has_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        held_checkpoint("run", tmp_path),
        held_checkpoint("other", tmp_path),
        raises("already_training", match="--no-resume"),
        held_checkpoint("run", tmp_path),
    ):
        pass
    with held_checkpoint("run", tmp_path):
        pass


@pytest.mark.parametrize("blocked", ["", f"checkpoints/run{SUFFIX}"], ids=["folder", "file"])
def test_a_place_that_cannot_be_used_is_an_error_that_names_it(
    tmp_path: Path, blocked: str
) -> None:
    cache = tmp_path / "cache"
    if blocked:
        (cache / blocked).mkdir(parents=True)
    else:
        cache.write_text("")

    with (
        raises("cache_unusable", match="NUNATAK_CACHE") as caught,
        held_checkpoint("run", cache) as checkpoint,
    ):
        checkpoint.load()

    assert str(cache / blocked) in str(caught.value)


def test_every_change_of_the_result_changes_the_name_of_the_run() -> None:
    recipe = recipe_of(HeadOnly())
    modern = tiny_backbone(num_layers=2, family="modernbert")
    keys = {
        # The dense block from which every head of this family starts.
        *(
            run_key({"tone": replace(DATA, kind=kind)}, recipe, backbone)
            for backbone in (modern, replace(modern, pooler=modern.layers[0].qkv))
            for kind in (DATA.kind, TaskKind.TOKEN_CLASSIFICATION)
        ),
        *(run_key({"tone": DATA}, recipe, BACKBONE) for _ in range(2)),
        run_key({"other": DATA}, recipe, BACKBONE),
        run_key({"tone": toy_data(num_train=32)}, recipe, BACKBONE),
        run_key({"tone": replace(DATA, teacher=TEACHER)}, recipe, BACKBONE),
        run_key({"tone": toy_data(num_train=30, num_dev=8)}, recipe, BACKBONE),
        run_key({"tone": DATA}, recipe_of(HeadOnly(), seed=1), BACKBONE),
        run_key({"tone": DATA}, recipe, tiny_backbone(num_layers=2, seed=1)),
        run_key({"tone": DATA}, recipe, replace(BACKBONE, pooling=Pooling.MEAN)),
        run_key({"tone": DATA}, recipe, replace(BACKBONE, pooler=BACKBONE.layers[0].qkv)),
    }

    assert len(keys) == 4 + 9
