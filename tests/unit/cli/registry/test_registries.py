"""Laws of `nunatak registry copy`, and of the places that a command makes a registry at."""

from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.drafts import publish_one
from doubles.golden import OLDER_STEPS, put_in_folder, rows_of
from doubles.terminals import nunatak
from nunatak_registry import Registry
from nunatak_registry.index.schema import STEPS


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for number, step in OLDER_STEPS.items():
        monkeypatch.setitem(STEPS, number, step)
    return put_in_folder("1", tmp_path / "old")


def test_copy_says_what_it_copied_and_what_was_there(
    folder: Path, registry: Registry, tmp_path: Path
) -> None:
    target = str(tmp_path / "target")

    first = nunatak("registry", "copy", str(folder), target, "--create")
    again = nunatak("registry", "copy", str(folder), target)
    registry.promote("intent", "prod", 3)
    publish_one(registry, seed=9)
    later = nunatak("registry", "copy", str(folder), target)

    size = sum(blob.size_bytes for it in registry.versions("intent")[:3] for blob in it.blobs)
    assert first.stdout == f"intent: copied versions 1, 2, 3; 2 events of aliases; {size} bytes\n"
    assert again.stdout == "intent: everything was there already\n"
    assert later.stdout.startswith(
        "intent: copied version 4; 3 there already; 1 event of aliases; "
    )
    with Registry.open(target) as copied:
        assert copied.task("intent").aliases == {"prod": 3}


def test_copy_goes_on_after_a_task_that_it_refuses(
    folder: Path, registry: Registry, tmp_path: Path
) -> None:
    publish_one(registry, "mood", seed=5)
    with Registry.open(tmp_path / "target") as target:
        publish_one(target, "intent", seed=50)

    ran = nunatak("registry", "copy", str(folder), str(tmp_path / "target"), "--json")

    assert ran.exit_code == 1
    failures = [(it["task"], it["code"]) for it in ran.json()["failed"]]
    assert failures == [("intent", "copy_conflict")]
    with Registry.open(tmp_path / "target") as target:
        assert target.task("mood").versions == (1,)


def test_copy_of_named_tasks_leaves_the_others_behind(
    folder: Path, registry: Registry, tmp_path: Path
) -> None:
    publish_one(registry, "mood", seed=5)

    nunatak("registry", "copy", str(folder), str(tmp_path / "b"), "--task", "mood", "--create")

    with Registry.open(tmp_path / "b") as target:
        assert [it.name for it in target.tasks()] == ["mood"]


@pytest.mark.parametrize("mistyped", ["source", "target"])
def test_copy_makes_no_registry_from_a_typing_error(
    folder: Path, registry: Registry, tmp_path: Path, mistyped: str
) -> None:
    assert registry.tasks()
    places = {"source": str(folder), "target": str(folder)} | {mistyped: str(tmp_path / "tpyo")}

    ran = nunatak("registry", "copy", places["source"], places["target"])

    ran.assert_refused("registry_missing")
    assert not (tmp_path / "tpyo").exists()


COMMANDS = [
    ("task", "list"),
    ("task", "versions", "intent"),
    ("task", "promote", "intent/1", "--unprobed"),
    ("task", "gc"),
    ("predict", "Come.", "--task", "tone"),
    ("train", "--task", "tone", "--data", "demo/data/tone"),
    ("task", "import", "./nowhere", "--task", "tone"),
    ("task", "pull", "./nowhere"),
    ("serve", "--port", "0"),
]


@pytest.mark.parametrize(
    ("place", "command"),
    [
        *(("folder", it) for it in COMMANDS),
        *((place, COMMANDS[at]) for place in ("empty", "database") for at in (0, -2)),
    ],
)
def test_a_place_without_a_registry_is_an_error_and_stays_as_it_is(
    tmp_path: Path, place: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    named = {
        "folder": str(tmp_path / "tpyo"),
        "empty": str(tmp_path / "empty"),
        "database": f"sqlite:///{tmp_path}/index.db?blobs={tmp_path}/blobs",
    }

    ran = nunatak(*command, "--registry", named[place])

    ran.assert_refused("registry_missing", "there is no registry at ", "give --create to")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_default_registry_is_made_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    nunatak("task", "list").assert_refused("registry_missing")
    # The command opens the registry before it looks for the folder to pull.
    nunatak("task", "pull", str(tmp_path / "absent"))
    made = nunatak("task", "list")

    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr.startswith(f"no tasks yet in {tmp_path / 'nunatak' / 'registry'};")
    assert made.stderr.endswith("`nunatak train`\n")


def test_a_named_registry_is_made_only_when_that_is_asked_for(tmp_path: Path) -> None:
    place = ("--registry", str(tmp_path / "new"))

    nunatak("task", "pull", str(tmp_path / "absent"), "--create", *place)

    assert nunatak("task", "list", *place).exit_code == 0


def test_a_password_is_in_no_message_about_a_missing_registry(tmp_path: Path) -> None:
    url = f"sqlite://ann:swordfish@/{tmp_path}/index.db?blobs=b&key=swordfish"

    assert "swordfish" not in nunatak("task", "list", "--registry", url).stderr


def test_a_line_for_each_step_then_nothing_to_do(old: str) -> None:
    before = rows_of(old)

    rehearsed = nunatak("registry", "upgrade", "--registry", old, "--dry-run")
    assert rehearsed.stdout.splitlines()[-1] == "a copy has layout 3 now; the registry is unchanged"
    assert rows_of(old) == before

    first = nunatak("registry", "upgrade", "--registry", old)
    again = nunatak("registry", "upgrade", "--registry", old)

    lines = first.stderr.splitlines()
    (copy,) = Path(old).glob("index-layout-1-*.sqlite3")
    assert lines[0] == f"upgrade: the index as it was: {copy}"
    assert [line.split(": ")[1] for line in lines[1:]] == ["layout 1 -> 2", "layout 2 -> 3"]
    assert first.stdout == "the index has layout 3 now; 3 versions kept\n"
    assert (again.exit_code, again.stdout) == (0, "nothing to do: the index has layout 3\n")


def test_quiet_prints_nothing_and_json_one_document(old: str, tmp_path: Path) -> None:
    rehearsed = nunatak("registry", "upgrade", "--registry", old, "--dry-run", "--json").json()
    done = nunatak("registry", "upgrade", "--registry", old, "--json").json()
    again = nunatak("registry", "upgrade", "--registry", old, "--json", "--quiet").json()
    other = put_in_folder("1", tmp_path / "other")
    options = ("--registry", other, "--quiet", "--backup", str(tmp_path))
    quiet = nunatak("registry", "upgrade", *options)

    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert len(list(tmp_path.glob("index-layout-1-*.sqlite3"))) == 1
    assert rehearsed == {
        "found": "1",
        "layout": "3",
        "steps": ["2", "3"],
        "backup": None,
        "num_versions": 3,
        "unreadable": [],
        "dry_run": True,
    }
    (copy,) = Path(old).glob("index-layout-1-*.sqlite3")
    assert done == {**rehearsed, "backup": str(copy), "dry_run": False}
    assert again == {**rehearsed, "found": "3", "steps": [], "dry_run": False}


def test_a_manifest_that_cannot_be_read_is_named(old: str) -> None:
    write_rows(Path(old), "UPDATE nunatak_versions SET manifest = ? WHERE task = ?", "{}", "topic")

    ran = nunatak("registry", "upgrade", "--registry", old)

    assert ran.exit_code == 1
    assert "topic/1" in ran.stderr
    assert rows_of(old)["nunatak_state"][0]["schema_version"] == 3


def test_quiet_copy_prints_only_failures(old: str, tmp_path: Path) -> None:
    nunatak("registry", "upgrade", "--registry", old)

    ran = nunatak("registry", "copy", old, str(tmp_path / "new"), "--create", "--quiet")

    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")
    assert nunatak("task", "list", "--registry", str(tmp_path / "new")).stdout.count("\n") >= 3
