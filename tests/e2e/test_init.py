"""A new project's folder: its README's commands, run in its order."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from demo.server_process import ServerProcess
from doubles.damage import files_of_at_most
from doubles.proxies import free_port
from doubles.terminals import nunatak
from nunatak_cli.training.init import ReadyTask
from nunatak_cli.training.runs import read_task_file, runs_of
from nunatak_contract.enums import OnFailure
from nunatak_contract.policies import Policy
from nunatak_server.settings import ServerSettings
from nunatak_server.verdicts.patterns import matches_in
from nunatak_server.verdicts.rules import mask
from nunatak_training.data import load_task_data

ADDRESS = "http://127.0.0.1:8080"
PROGRAM = Path(sys.executable).with_name("nunatak")
ROOT = Path(__file__).parents[2]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line)
    command = [str(PROGRAM), *words[1:]] if words[0] == "nunatak" else words
    return subprocess.run(  # noqa: S603 - the README's own commands; no shell
        command, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(name="project", scope="module")
def make_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    made = run("nunatak init support --with personal_data", folder)
    assert made.returncode == 0, made.stderr
    return folder / "support"


def test_a_project_has_every_file_that_its_readme_names(project: Path) -> None:
    files = {it.relative_to(project).as_posix() for it in project.rglob("*") if it.is_file()}
    readme = (project / "README.md").read_text(encoding="utf-8")

    own = {f"data/personal_data/{it}" for it in ("README.md", "train.jsonl", "test.jsonl")}
    assert own | {"tasks.yaml", "data/urgent/train.csv"} < files
    assert all(f"`{Path(it).name}`" in readme or it in readme for it in files - own)


def test_each_ready_task_has_a_recipe_that_trains_on_its_own_examples(tmp_path: Path) -> None:
    words = [word for it in (*ReadyTask, ReadyTask.TONE) for word in ("--with", it)]
    assert nunatak("init", str(tmp_path / "all"), *words).exit_code == 0

    file = read_task_file(tmp_path / "all" / "tasks.yaml")
    runs = {it.task: it for it in runs_of(file, tmp_path)}
    assert runs.keys() == {"urgent", *ReadyTask}
    for task in ReadyTask:
        data = load_task_data(runs[task].data)
        assert data.test is not None
        assert not {it.text for it in data.test.examples} & {it.text for it in data.train.examples}
        assert {it.label for it in data.test.examples} == {*data.labels}
        assert runs[task].settings.changes.get("default_label", data.labels[0]) in data.labels
        asked = (it for it in policy_of(tmp_path / "all").conditions if it.task == task)
        assert {label for it in asked for label in it.labels} <= {*data.labels}


def test_a_disk_that_was_full_takes_the_project_when_there_is_room(tmp_path: Path) -> None:
    command = ("init", str(tmp_path / "new"), "--with", "tone")
    with files_of_at_most(2000):
        full = nunatak(*command)

    assert (full.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert nunatak(*command).exit_code == 0


def policy_of(project: Path) -> Policy:
    return Policy.model_validate_json((project / "triage.json").read_bytes())


@pytest.mark.parametrize(
    ("tasks", "actions", "on_failure"),
    [
        ("tone intent", {"flag"}, OnFailure.ALLOW),
        ("tone attack", {"flag", "block"}, OnFailure.BLOCK),
        ("attack personal_data", {"flag", "block", "mask"}, OnFailure.BLOCK),
    ],
)
def test_a_project_with_a_guard_guards(
    tmp_path: Path, tasks: str, actions: set[str], on_failure: OnFailure
) -> None:
    words = [word for it in tasks.split() for word in ("--with", it)]
    assert nunatak("init", str(tmp_path / "new"), *words).exit_code == 0

    policy = policy_of(tmp_path / "new")

    assert policy.on_failure is on_failure
    assert {it.action.value for it in policy.rules} == actions
    assert policy.tasks == {"urgent", *tasks.split()} - {"tone", "intent"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ann.o'neil+x@mail.bank.example, (j\u00fcrgen@m\u00fcller.de).", "[MAIL], ([MAIL])."),
        ("react@18.2.0, a note @ann at 5 a.m.", None),
        ("DE89 3704 0044 0532 0130 00 is ours", "[IBAN] is ours"),
        ("at61 1904 3002 3457 3201 from today", "[IBAN] from today"),
        ("GB29NWBK60161331926819.", "[IBAN]."),
        ("FR14 2004 1010 0505 0001 3M02 606", "[IBAN]"),
        ("NO93 8601 1117 947 or BE68539007547034", "[IBAN] or [IBAN]"),
        ("TR33 0006 1005 1978 6457 8413 26, BE68-5390-0754-7034", "[IBAN], [IBAN]"),
        ("DE89 3704 0044 0532, no12 this that was", None),
        ("4111 1111 1111 1111 12/27 123", "[CARD] 12/27 123"),
        ("5555555555554444, 3782-822463-10005, 30569309025904", "[CARD], [CARD], [CARD]"),
        ("\uff14111\u20091111\u20111111\u00a01111", "[CARD]"),
        ("order 2024113012345678 of 20261130120000, call 0155 1234 5678", None),
        ("AKIAIOSFODNN7EXAMPLE", "[KEY]"),
        (f"ghp_{'a1' * 18}; AIza{'b-' * 17}c; sk-ant-{'x' * 40}", "[KEY]; [KEY]; [KEY]"),
        (f"sk-svcacct-{'x' * 40}; sk-{'a1' * 24}; hf_{'a' * 34}", "[KEY]; [KEY]; [KEY]"),
        ("sk-learn-is-a-library-of-methods", None),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.SflK-w_c", "Bearer [TOKEN]"),
        ("-----BEGIN RSA PRIVATE KEY-----", "[PRIVATE_KEY]"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "[PRIVATE_KEY]"),
        ("-----BEGIN PUBLIC KEY-----", None),
    ],
)
def test_the_patterns_of_a_guard_find_numbers_and_keys_and_no_more(
    tmp_path: Path, text: str, masked: str | None
) -> None:
    words = ("--with", "attack", "--with", "personal_data")
    assert nunatak("init", str(tmp_path / "new"), *words).exit_code == 0

    found = matches_in(policy_of(tmp_path / "new").patterns, text)

    spans = [span for state in found.values() for span in state.spans]
    assert mask(text, spans) == (text if masked is None else masked)


def test_the_compose_file_starts_this_release_with_settings_that_exist(project: Path) -> None:
    text = (project / "compose.yaml").read_text(encoding="utf-8")
    (server,) = yaml.safe_load(text)["services"].values()

    known = {f"NUNATAK_{name.upper()}" for name in ServerSettings.model_fields}
    assert server["image"] == f"nunatak:{version('nunatak')}"
    assert set(server["environment"]) <= known
    assert all(it.startswith("127.0.0.1:") for it in server["ports"])
    # `nunatak key revoke` replaces the file, and a mount of the file alone would keep the old one.
    assert "./keys:/etc/nunatak:ro" in server["volumes"]


@pytest.mark.parametrize(
    ("folder", "problem"),
    [(".", "expected a new or empty folder"), ("mine.txt/new", "cannot be made: Not a directory")],
)
def test_a_folder_with_files_is_left_as_it_is(tmp_path: Path, folder: str, problem: str) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    refused = nunatak("init", str(tmp_path / folder))

    assert refused.exit_code != 0
    assert refused.stderr.startswith("error [invalid_option]: ")
    assert problem in refused.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_of_a_project_works_as_written(project: Path) -> None:
    readme = (project / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    training, serving, asking, container = (it.splitlines() for it in blocks)
    assert serving == ["nunatak serve --registry registry --port 8080"]

    answers = list[str]()
    for line in training:
        assert (done := run(line, project)).returncode == 0, done.stderr
    with ServerProcess(project / "registry", log=project / "server.log") as server:
        for line in asking:
            done = run(line.replace(ADDRESS, server.url), project)
            assert done.returncode == 0, done.stderr
            answers.append(done.stdout)
    assert "urgent" in answers[0]
    assert json.loads(answers[1])["action"] == "flag"
    assert [run(it, project).returncode for it in container[:2]] == [0, 0]
    assert (project / "keys" / "keys.json").stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_of_production_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    training, keys, serving, asking, changing, copying = (
        it.replace("\\\n", "").splitlines() for it in blocks
    )
    assert training[1:3] == [
        "cd support",
        "export NUNATAK_REGISTRY=registry NUNATAK_API_KEYS_FILE=keys.json",
    ]
    assert serving == ["nunatak serve --processes 2 --port 8080"]
    project = tmp_path / "support"

    def runs(line: str, folder: Path = project) -> str:
        done = run(line, folder)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    runs(training[0], tmp_path)
    monkeypatch.setenv("NUNATAK_REGISTRY", str(project / "registry"))
    monkeypatch.setenv("NUNATAK_API_KEYS_FILE", str(project / "keys.json"))
    for line in training[3:]:
        runs(line)
    key = [runs(line).split()[-1] for line in keys][-1]
    monkeypatch.setenv("NUNATAK_API_KEY", key)
    port = free_port()
    for place, there in (("8080", port), ("8081", port + 1), ("$NUNATAK_API_KEY", key)):
        asking = [it.replace(place, str(there)) for it in asking]
    options = ("--processes", "2")
    with ServerProcess(project / "registry", port=port, log=tmp_path / "log", options=options):
        answers = [runs(line) for line in asking]
        for line in changing:
            runs(line)
    assert json.loads(answers[1])["action"] == "flag"
    assert "nunatak_predicted_labels_total" in answers[2]
    for line in copying:
        runs(line)
