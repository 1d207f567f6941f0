"""No command prints a text of a model, a file or a server without escapes.

A new command needs cases here: each command prints foreign texts, or is in `PRINTS_NONE`.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.hostile_texts import HOSTILE, HOSTILE_FILE_NAME, MARKUP, hostile_server, obeyed
from doubles.policies import make_policy, make_rule, when
from doubles.replicas import beat
from doubles.sweeps import record_of, toy_folder, toy_runs
from doubles.tasks import tiny_task
from doubles.terminals import command_paths
from nunatak_cli.main import app
from nunatak_contract.evidence import (
    ConfusionCell,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    RecipeRecord,
)
from nunatak_contract.manifest import TaskDraft
from nunatak_contract.policies import Policy
from nunatak_contract.questions import QuestionCard
from nunatak_exchange.backbones import AddedBackbone
from nunatak_exchange.hub import write_hub_folder
from nunatak_exchange.transformers_export import export_transformers
from nunatak_model import load_backbone
from nunatak_registry import Registry
from nunatak_server.decisions.collection import Collection
from nunatak_training.sweeps.results import Failed, ResultsFolder
from nunatak_versions import load_task

LABELS = (MARKUP, "[link=https:evil]", "[/]")
PRINTS_NONE = {
    ("loadtest", "scenarios"): "prints what the package itself brings",
    ("savings",): "prints numbers alone",
    ("loadtest", "locustfile"): "prints a path of the package itself",
}

Case = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Places full of hostile names and texts, and two hostile servers."""

    folder: Path
    answering: str
    refusing: str

    @property
    def registry(self) -> Case:
        return ("--registry", str(self.folder / "registry"))

    @property
    def backbone(self) -> Case:
        return ("--backbone", str(self.folder / HOSTILE_FILE_NAME))

    def new(self) -> Path:
        """A hostile path that does not exist."""
        free = (f"{HOSTILE_FILE_NAME}{number}" for number in range(1000))
        return next(path for name in free if not (path := self.folder / name).exists())


def hostile_draft(draft: TaskDraft) -> TaskDraft:
    digest = "d" * 64
    cell = ConfusionCell(truth=LABELS[0], predicted=LABELS[1], count=3)
    return draft.model_copy(
        update={
            "note": HOSTILE,
            "data": DataRecord(
                name=HOSTILE, train_digest=digest, dev_digest=digest, num_train=9, num_dev=3
            ),
            "recipe": RecipeRecord(settings={HOSTILE: HOSTILE, "method": [HOSTILE]}, digest=digest),
            "metrics": (
                MetricRecord(name=HOSTILE[-64:], value=0.5, data_digest=digest, num_examples=3),
            ),
            "confusion": ConfusionRecord(data_digest=digest, cells=(cell,)),
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    folder = tmp_path_factory.mktemp("world")
    save_tiny_backbone(folder / HOSTILE_FILE_NAME)
    backbone = load_backbone(folder / HOSTILE_FILE_NAME)
    with Registry.open(folder / "registry") as registry:
        for seed in (1, 2, 3):
            draft, blobs = tiny_task(backbone, labels=LABELS, seed=seed)
            manifest = registry.publish(hostile_draft(draft), blobs)
            registry.promote("tone", "prod", manifest.version)
        task = load_task(manifest, blobs["parameters"], backbone)
        rule = make_rule(when("tone", MARKUP), message=MARKUP)
        registry.policies.put(make_policy(rule, name="guard"))
        registry.questions.put(QuestionCard.model_validate(CARD))
        beat(registry, id=HOSTILE, address=HOSTILE, release=HOSTILE)
    write_policies(folder, make_policy(rule, name="other"))
    export_transformers(task, folder / f"sound {HOSTILE_FILE_NAME}", backbone)
    refused = folder / f"labels {HOSTILE_FILE_NAME}"
    export_transformers(task, refused, backbone)
    config = json.loads((refused / "config.json").read_text())
    config["id2label"] = {"0": HOSTILE, "1": "b", "2": "c"}
    (refused / "config.json").write_text(json.dumps(config))
    write_hub_folder(task.manifest, blobs, folder / f"pushed {HOSTILE_FILE_NAME}")
    write_cards(folder)
    write_data(folder)
    write_sweep(folder)
    write_backbone(folder)
    with hostile_server(refuses=False) as answering, hostile_server(refuses=True) as refusing:
        yield World(folder=folder, answering=answering, refusing=refusing)


def write_data(folder: Path) -> None:
    rows = rows_of(toy_examples(12))
    broken = [*rows, {"text": "a", "label": [HOSTILE]}]
    write_jsonl(folder / f"broken {HOSTILE_FILE_NAME}.jsonl", broken)
    labelled = [{**row, "label": f"{row['label']}{HOSTILE}"} for row in rows]
    write_jsonl(folder / "labels.jsonl", labelled)
    known = [{"text": HOSTILE, "label": label} for label in LABELS]
    write_jsonl(folder / f"known {HOSTILE_FILE_NAME}.jsonl", known)
    write_jsonl(folder / f"columns {HOSTILE_FILE_NAME}.jsonl", [{HOSTILE: HOSTILE}])
    (folder / "tasks.yaml").write_text(json.dumps({"tasks": {HOSTILE: {"data": HOSTILE}}}))
    (folder / "config.toml").write_text(f"registry = {json.dumps(HOSTILE_FILE_NAME)}\n")
    (folder / "keys").write_text(json.dumps({"format": 1, HOSTILE: HOSTILE}))
    (folder / "keys").chmod(0o600)


def write_policies(folder: Path, policy: Policy) -> None:
    document = policy.model_dump(mode="json")
    (folder / f"policy {HOSTILE_FILE_NAME}.json").write_text(json.dumps(document))
    broken = {**document, HOSTILE: HOSTILE}
    (folder / f"broken {HOSTILE_FILE_NAME}.json").write_text(json.dumps(broken))


CARD: dict[str, Any] = {
    "name": "known",
    "task": "tone@prod",
    "question": {
        "type": "choice",
        "instructions": HOSTILE,
        "criteria": dict.fromkeys(LABELS, HOSTILE),
    },
}


def write_cards(folder: Path) -> None:
    other = {**CARD, "name": "other", "question": {**CARD["question"], "instructions": MARKUP}}
    for name, card in (("card", other), ("bad card", {**CARD, HOSTILE: HOSTILE})):
        (folder / f"{name} {HOSTILE_FILE_NAME}.json").write_text(json.dumps(card))
    question = QuestionCard.model_validate(CARD).question
    collection = Collection(folder / f"collected {HOSTILE_FILE_NAME}", max_rows=9, max_days=1)
    collection.open()
    collection.add(question, HOSTILE, dict.fromkeys(LABELS, 1 / len(LABELS)))


def write_sweep(folder: Path) -> None:
    runs = toy_runs(toy_folder(folder), methods=[{"kind": "head"}], seeds=[0, 1])
    results = ResultsFolder(folder / "results")
    for run, scores in zip(runs, [(0.5,), ()], strict=True):
        record = record_of(run, *scores)
        description = record.run.model_copy(
            update={
                "task": HOSTILE,
                "backbone": record.run.backbone.model_copy(update={"name": HOSTILE}),
            }
        )
        update: dict[str, object] = {"run": description}
        if not scores:
            update["outcome"] = Failed(code="failed", message=HOSTILE)
        results.add(record.model_copy(update=update))
    (folder / "sweep.yaml").write_text(
        json.dumps({"tasks": [{"name": "toy", "data": HOSTILE}], "methods": [{"kind": "head"}]})
    )


def write_backbone(folder: Path) -> None:
    record = AddedBackbone(
        name="hostile",
        source=HOSTILE,
        digest="d" * 64,
        model_type=HOSTILE,
        num_layers=1,
        hidden_width=8,
        max_tokens=64,
        difference=0.0,
    )
    place = folder / "data" / "nunatak" / "backbones" / "hostile"
    place.mkdir(parents=True)
    (place / "backbone.json").write_text(record.model_dump_json())


def backbone_cases(world: World) -> Iterator[Case]:
    yield ("backbone", "add", str(world.new()))
    yield ("backbone", "add", str(world.folder / HOSTILE_FILE_NAME), "--name", HOSTILE)
    for options in ((), ("--json",)):
        yield ("backbone", "list", *options)
        yield ("backbone", "show", "hostile", *options)
        yield ("backbone", "verify", *options)
    yield ("backbone", "verify", HOSTILE)


def train_cases(world: World) -> Iterator[Case]:
    rest = ("train", "--task", "tone", *world.registry, *world.backbone)
    taught = ("adopt", "tone", "--from", "tone", *world.registry, *world.backbone)
    broken = f"broken {HOSTILE_FILE_NAME}.jsonl"
    for data in (str(world.folder / broken), str(world.folder / "labels.jsonl"), str(world.new())):
        yield (*rest, "--data", data)
        yield (*taught, "--texts", data, "--method", "head")
    yield (*taught[:3], HOSTILE, *taught[4:], "--texts", str(world.folder / "labels.jsonl"))


def predict_cases(world: World) -> Iterator[Case]:
    yield ("predict", "text", "--task", "tone", *world.registry, *world.backbone)
    broken = str(world.folder / f"columns {HOSTILE_FILE_NAME}.jsonl")
    yield ("predict", "--file", broken, "--task", "tone", *world.registry, *world.backbone)
    named = str(world.folder / f"known {HOSTILE_FILE_NAME}.jsonl")
    for place in ((*world.registry, *world.backbone), ("--server", world.refusing)):
        yield ("predict", "--file", named, "--task", "tone", *place)
    for at in ((*world.registry, *world.backbone), ("--server", world.refusing)):
        for options in ((), ("--json",)):
            yield from (("judge", it, HOSTILE, *at, *options) for it in ("guard", HOSTILE))
    for server in (world.answering, world.refusing):
        asked = ("predict", "text", "--task", "a", "--task", "b", "--server", server)
        for options in ((), ("--json",), ("--stream",), ("--stream", "--json")):
            yield (*asked, *options)


def predict_file_cases(world: World) -> Iterator[Case]:
    rest = ("--task", "tone", *world.registry, *world.backbone)
    for name in ("known", "columns", "broken"):
        source = str(world.folder / f"{name} {HOSTILE_FILE_NAME}.jsonl")
        for options in ((), ("--json",), ("--text-column", HOSTILE)):
            yield ("predict-file", source, f"{world.new()}.jsonl", *rest, *options)
    yield ("predict-file", str(world.new()), f"{world.new()}.jsonl", *rest)


def document_cases(world: World) -> Iterator[Case]:
    names = {"policy": ("policy", "broken", "guard"), "question": ("card", "bad card", "known")}
    for group, (sound, broken, known) in names.items():
        files = [str(world.folder / f"{it} {HOSTILE_FILE_NAME}.json") for it in (sound, broken)]
        for place in (world.registry, ("--registry", str(world.new()))):
            for options in ((), ("--json",)):
                for name in ("put", "check"):
                    yield from ((group, name, it, *place, *options) for it in files)
                yield (group, "list", *place, *options)
                for name in ("history", "rollback"):
                    yield from ((group, name, it, *place, *options) for it in (known, HOSTILE))
            yield from ((group, "show", it, *place) for it in (known, HOSTILE))
    for options in ((), ("--json",)):
        for folder in (str(world.folder / f"collected {HOSTILE_FILE_NAME}"), str(world.new())):
            yield ("question", "collected", folder, *options)


def judging_cases(world: World) -> Iterator[Case]:
    sound = str(world.folder / f"policy {HOSTILE_FILE_NAME}.json")
    judging = ("policy", "check", sound, *world.registry, *world.backbone)
    for data in (f"known {HOSTILE_FILE_NAME}", f"broken {HOSTILE_FILE_NAME}", "labels"):
        rows = ("--data", str(world.folder / f"{data}.jsonl"))
        yield from ((*judging, *rows, *it) for it in ((), ("--harmful", HOSTILE)))
        for options in ((), ("--json",)):
            yield (*judging, *rows, "--harmful", MARKUP, *options)


def cluster_cases(world: World) -> Iterator[Case]:
    for name in ("up", "status", "down"):
        yield ("cluster", name, "--on", HOSTILE)
    yield ("cluster", "up", "--replicas", HOSTILE)
    yield ("cluster", "up", "--set", HOSTILE, *world.registry)


def replica_cases(world: World) -> Iterator[Case]:
    for options in ((), ("--json",)):
        yield ("replicas", *world.registry, *options)
    yield ("replicas", "--registry", str(world.new()))


def evaluate_cases(world: World) -> Iterator[Case]:
    known = str(world.folder / f"known {HOSTILE_FILE_NAME}.jsonl")
    here = (*world.registry, *world.backbone)
    yield ("evaluate", "tone", "--data", known, *here)
    yield ("evaluate", "tone", "--data", known, *here, "--json")
    yield ("evaluate", "tone", "--data", known, *here, "--wrong", str(world.new()))
    yield ("evaluate", "tone", "--data", str(world.folder / "labels.jsonl"), *here)
    convert = (
        "task",
        "convert",
        "tone",
        *world.registry,
        "--backbone",
        f"{world.backbone[1]}+int8",
    )
    for data in (known, str(world.folder / "labels.jsonl"), str(world.new())):
        yield (*convert, "--data", data)
    yield ("evaluate", "tone", "--data", str(world.new()), *here)
    for server in (world.answering, world.refusing):
        yield ("evaluate", "tone", "--data", known, "--server", server)


def task_cases(world: World) -> Iterator[Case]:
    for options in ((), ("--json",)):
        yield ("task", "list", *world.registry, *options)
        yield ("task", "versions", "tone", *world.registry, *options)
        yield ("task", "versions", HOSTILE, *world.registry, *options)
        yield ("registry", "copy", world.registry[1], str(world.new()), *options)
        yield ("registry", "upgrade", "--registry", str(world.new()), *options)
        copied = ("registry", "copy", world.registry[1], world.registry[1])
        yield (*copied, "--task", HOSTILE, "--task", "tone", *options)
        yield ("task", "diff", "tone/1", "tone/2", *world.registry, *options)
        yield ("task", "history", "tone", "--alias", HOSTILE, *world.registry, *options)
        yield ("task", "shadow", "tone", "--report", "--server", world.answering, *options)
        yield ("task", "thresholds", "tone", *world.registry, *options)
        yield ("task", "thresholds", HOSTILE, *world.registry, *options)
        yield ("task", "thresholds", "tone", "--label", HOSTILE, *world.registry, *options)
        yield from [
            ("task", "verify", HOSTILE, *world.registry, *options),
            ("task", "import", *imported(world), "--note", HOSTILE, *options),
        ]
    for options in ((), ("--json",), ("--markdown",)):
        yield ("task", "show", "tone", *world.registry, *options)
    yield ("task", "promote", "tone/1", "--alias", HOSTILE, "--unprobed", *world.registry)
    yield ("task", "rollback", "tone", "--alias", HOSTILE, "--unprobed", *world.registry)
    canary = ("--share", "0.5", "--alias", HOSTILE, "--unprobed")
    yield ("task", "canary", "tone/1", *canary, *world.registry)
    yield ("task", "shadow", "tone", "--report", "--server", world.refusing)
    pushed = str(world.folder / f"pushed {HOSTILE_FILE_NAME}")
    there = ("--task", "back", *world.registry, *world.backbone)
    written = str(world.new())
    yield from [
        ("task", "import", str(world.folder / f"labels {HOSTILE_FILE_NAME}"), *imported(world)[1:]),
        ("task", "import", *imported(world), "--labels", HOSTILE),
        ("task", "export", "tone", written, *world.registry, *world.backbone),
        ("task", "push", "tone", written, *world.registry),
        ("task", "pull", pushed, *there, "--json"),
        ("task", "pull", f"{pushed}/gone", *there),
        ("task", "delete", f"{HOSTILE}/1", "--yes", *world.registry),
        ("task", "gc", "--registry", str(world.new())),
    ]


def imported(world: World) -> Case:
    place = str(world.folder / f"sound {HOSTILE_FILE_NAME}")
    return (place, "--task", "mood", *world.registry, *world.backbone)


def server_cases(world: World) -> Iterator[Case]:
    for server in (world.answering, world.refusing):
        yield ("memory", "show", "--server", server)
        yield ("memory", "show", "--json", "--server", server)
        for name in ("preload", "pin", "unpin", "evict"):
            yield ("memory", name, "tone", "--server", server)
    yield ("loadtest", "run", "--server", world.refusing)


def file_cases(world: World) -> Iterator[Case]:
    yield ("init", str(world.new()))
    broken = world.folder / f"broken {HOSTILE_FILE_NAME}.jsonl"
    yield ("train-all", str(world.folder / "tasks.yaml"), *world.registry)
    both = ("--data", f"a={broken}", "--data", f"b={broken}")
    yield ("multitask", str(world.new()), *both, *world.backbone)
    yield ("serve", "--config", str(world.folder / "config.toml"), "--show-config")
    results, sweep = str(world.folder / "results"), str(world.folder / "sweep.yaml")
    backbones = json.dumps([str(world.folder / HOSTILE_FILE_NAME)])
    there = ("--results", str(world.folder / "r"))
    yield ("sweep", "run", sweep, *there, "--set", f"backbones={backbones}")
    yield ("sweep", "report", results)
    yield ("sweep", "publish", results, "--task", "tone", "--of", f"{HOSTILE} gone")
    yield ("sweep", "publish", results, "--task", "tone", *world.registry)
    for data in (str(world.folder / "labels.jsonl"), str(broken), str(world.new())):
        yield ("doubts", "--data", data, *world.backbone)
    for name in ("show", "clear"):
        yield ("cache", name)
    keys = ("--file", str(world.folder / "keys"))
    for name in (("list",), ("revoke", "a"), ("create", "a")):
        yield ("key", *name, *keys)


SOURCES: tuple[Callable[[World], Iterator[Case]], ...] = (
    backbone_cases,
    train_cases,
    predict_cases,
    predict_file_cases,
    document_cases,
    judging_cases,
    cluster_cases,
    replica_cases,
    evaluate_cases,
    task_cases,
    server_cases,
    file_cases,
)


def cases_of(path: Case, world: World) -> list[Case]:
    cases = [case for source in SOURCES for case in source(world)]
    return [case for case in cases if case[: len(path)] == path]


# Ray declares its fields as pydantic 1 did.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.each
@pytest.mark.parametrize("styles", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("path", sorted(set(command_paths()) - PRINTS_NONE.keys()), ids=" ".join)
def test_no_command_prints_what_a_terminal_obeys(
    path: Case, world: World, monkeypatch: pytest.MonkeyPatch, *, styles: bool
) -> None:
    monkeypatch.setenv("NUNATAK_CACHE", str(world.folder / "cache" / HOSTILE_FILE_NAME))
    monkeypatch.setenv("XDG_DATA_HOME", str(world.folder / "data"))
    look = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if styles else {"NO_COLOR": "1"}
    printed = ""

    for case in cases_of(path, world):
        result = CliRunner().invoke(app, case, env={"COLUMNS": "600", **look})
        assert result.exception is None or isinstance(result.exception, SystemExit), case
        output = (result.stdout_bytes + result.stderr_bytes).decode()
        assert obeyed(output, has_styles=styles) == set(), case
        printed += output.replace("\\[", "[").replace("\\]", "]")

    # The cases are only valid if foreign texts were printed, without markup.
    assert "evil[b]" in printed


def test_only_commands_that_exist_are_left_out() -> None:
    assert PRINTS_NONE.keys() <= set(command_paths())


def test_json_keeps_what_texts_say(world: World) -> None:
    result = CliRunner().invoke(app, ("task", "show", "tone", "--json", *world.registry))

    shown = json.loads(result.stdout)["manifest"]
    assert (shown["note"], shown["data"]["name"]) == (HOSTILE, HOSTILE)
    assert shown["recipe"]["settings"][HOSTILE] == HOSTILE


def test_file_names_that_are_no_text_are_printed(world: World) -> None:
    name = os.fsdecode(b"evil\xff\x1b[2J.jsonl")

    ran = CliRunner().invoke(
        app, ("train", "--task", "tone", "--data", name, *world.registry, *world.backbone)
    )

    assert "evil" in ran.stderr
    assert obeyed(ran.stderr) == set()
