"""The ways of two users: a developer from a CSV to answers, a researcher from a sweep to scores."""

import json
from pathlib import Path

import pytest

from doubles.terminals import PROGRAM, ran
from nunatak_registry import Registry

TONE = Path(__file__).parents[2] / "demo" / "data" / "tone"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_researcher_scores_the_best_run_of_a_sweep_on_test_examples(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        f"tasks: [{{name: tone, data: {TONE}}}]\n"
        "methods: [{kind: head}]\n"
        "learning_rates: [1.0e-5, 1.0e-2]\n"
        "train_caps: [200]\n"
        "dev_cap: 100\n"
        "dev_from_train: true\n"
        "recipe: {epochs: 3}\n",
        encoding="utf-8",
    )

    def command(*words: str) -> str:
        return ran(PROGRAM, *words, NUNATAK_REGISTRY=str(tmp_path / "registry"), COLUMNS="200")

    command("sweep", "run", str(tmp_path / "sweep.yaml"), "--results", str(tmp_path / "results"))
    published = json.loads(
        command(
            "sweep", "publish", str(tmp_path / "results"), "--task", "tone", "--create", "--json"
        )
    )
    scored = json.loads(command("evaluate", "tone", "--data", str(TONE / "dev.jsonl"), "--json"))

    assert published["dev_score"] == published["dev_score_in_sweep"]
    assert scored["reference"] == published["reference"] == "tone/1"
    with Registry.open(tmp_path / "registry") as registry:
        manifest = registry.resolve("tone")
    assert manifest.recipe is not None
    assert manifest.recipe.settings["learning_rate"] == 1e-2
    (recorded,) = (it.value for it in manifest.test_metrics if it.name == "accuracy")
    assert scored["metrics"]["accuracy"] == pytest.approx(recorded, abs=0.02)
