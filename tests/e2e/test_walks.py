"""The ways of two users: a developer from a CSV to answers, a researcher from a sweep to scores."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nunatak
from doubles.serving import running_server
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry

TONE = Path(__file__).parents[2] / "demo" / "data" / "tone"
TICKETS = """body,queue
Please send me the invoice for March.,billing
"The invoice is too high, I paid already.",billing
Which account do I pay to?,billing
I was charged twice this month.,billing
Can I pay by credit card?,billing
When do I get my refund?,billing
My tax number is missing on the bill.,billing
The router shows a red light.,technical
The internet has been down since Monday.,technical
My password does not work any more.,technical
The app crashes when I open it.,technical
How do I set up the new modem?,technical
The connection is very slow at night.,technical
I cannot log in on my phone.,technical
"""
ASKED = "Why did you charge my credit card two times?"
CALL = """
const answer = await fetch(process.argv[1] + "/v1/tasks/queue@prod/predict", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ inputs: process.argv[2] }),
});
console.log(await answer.text());
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The answer in Python, and a server on the same registry."""

    answer: nunatak.Prediction
    url: str

    def check(self, printed: str) -> None:
        """Check that a printed answer is the answer in Python."""
        found: dict[str, Any] = json.loads(printed)
        assert (found["task"], found["version"]) == ("queue", 1)
        assert found["predicted"] == self.answer.predicted[0] == "billing"
        assert found["outputs"][0]["score"] == pytest.approx(self.answer.best.score, abs=1e-5)


def run(*words: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - programs of this test; no shell
        words, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(name="walk", scope="module")
def walk_in_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("developer")
    (folder / "tickets.csv").write_text(TICKETS, encoding="utf-8")
    with nunatak.train(
        "queue",
        folder / "tickets.csv",
        text_column="body",
        label_column="queue",
        registry=folder / "registry",
        promote="prod",
        method="head",
        show_progress=False,
    ) as trained:
        answer = trained.predict(ASKED)
    with (
        Registry.open(folder / "registry") as registry,
        running_server(load_backbone(DEFAULT_BACKBONE), registry) as url,
    ):
        yield Walk(answer=answer, url=url)


def test_a_developer_gets_one_answer_in_python_and_from_the_client(walk: Walk) -> None:
    with nunatak.Client(walk.url) as client:
        served = client.predict("queue@prod", ASKED)

    assert served.predicted == walk.answer.predicted == ("billing",)
    assert served.best.score == pytest.approx(walk.answer.best.score, abs=1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_developer_gets_the_same_answer_by_curl(walk: Walk) -> None:
    body = json.dumps({"inputs": ASKED})
    header = ("-H", "content-type: application/json")

    walk.check(run("curl", "-sf", f"{walk.url}/v1/tasks/queue@prod/predict", *header, "-d", body))


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_a_developer_gets_the_same_answer_in_javascript(walk: Walk) -> None:
    walk.check(run("node", "--input-type=module", "-e", CALL, walk.url, ASKED))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_researcher_scores_the_best_run_of_a_sweep_on_test_examples(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("nunatak"))
    environment = {"NUNATAK_REGISTRY": str(tmp_path / "registry"), "COLUMNS": "200"}
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
        return run(program, *words, environment=environment)

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
