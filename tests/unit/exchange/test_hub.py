"""Pushing to and pulling from folders and a hub over HTTP."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
import yaml

from doubles.backbones import tiny_backbone
from doubles.hostile_texts import HOSTILE, HOSTILE_FILE_NAME, obeyed
from doubles.hubs import FakeHub, running_hub
from doubles.refusals import raises
from doubles.tasks import publish_tiny_task, tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_contract.errors import InvalidNameError
from nunatak_contract.evidence import DataRecord, MetricRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_exchange.checkpoint import new_folder
from nunatak_exchange.hub import (
    FILES,
    draft_pulled,
    fetched,
    is_folder,
    push,
    read_hub_folder,
    write_hub_folder,
)
from nunatak_model import Backbone
from nunatak_registry import Registry


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskManifest, dict[str, bytes]]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        manifest = publish_tiny_task(registry, tiny_backbone(num_layers=2))
        return manifest, {"parameters": registry.read_blob(manifest)}


@pytest.fixture
def there() -> Iterator[FakeHub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture
def pushed(tmp_path: Path, backbone: Backbone) -> Path:
    return written(tmp_path / "pushed", backbone)


def written(folder: Path, model: Backbone, /, **changes: object) -> Path:
    draft, blobs = tiny_task(model)
    manifest = TaskManifest.model_validate({**draft.model_dump(), "version": 3, **changes})
    write_hub_folder(manifest, blobs, folder)
    return folder


def front_matter(folder: Path) -> dict[str, object]:
    _, fields, _ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(fields)


@pytest.mark.parametrize("place", ["./tone", "../tone", "/tmp/tone", "~/tone", "."])  # noqa: S108 - not written
def test_what_is_spelt_as_a_path_is_a_folder(place: str) -> None:
    assert is_folder(place)


def test_what_is_no_path_is_a_folder_only_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_folder("me/tone")

    (tmp_path / "me" / "tone").mkdir(parents=True)
    assert is_folder("me/tone")


@pytest.mark.parametrize("private", [True, False])
def test_what_is_pushed_to_the_hub_is_fetched_from_it(
    version: tuple[TaskManifest, dict[str, bytes]],
    there: FakeHub,
    private: bool,  # noqa: FBT001 - the spelling of the option
) -> None:
    address = push(*version, "me/tone", private=private)

    assert address == f"{there.address}/me/tone"
    assert there.private == {"me/tone": private}
    assert there.messages == ["Push tone/1"]
    assert set(there.repositories["me/tone"]) == {
        "README.md",
        "manifest.json",
        "parameters.safetensors",
    }
    assert b"nunatak task pull me/tone --task tone" in there.repositories["me/tone"]["README.md"]
    with fetched("me/tone", revision=None, files=FILES) as found:
        task = read_hub_folder(found.folder)
    assert (task.manifest, dict(task.blobs)) == version
    assert found.origin == f"me/tone@{there.commit('me/tone')}"
    assert not found.folder.exists()


def test_what_is_pushed_to_a_folder_is_fetched_from_it(
    version: tuple[TaskManifest, dict[str, bytes]], tmp_path: Path
) -> None:
    place = str(tmp_path / "tone")
    assert push(*version, place, private=True) == place

    with fetched(place, revision=None, files=FILES) as found:
        assert read_hub_folder(found.folder).manifest == version[0]
        assert found.origin == "tone"
    assert found.folder.is_dir()
    with raises("folder_in_use"):
        push(*version, place, private=True)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("place", "revision", "code", "problem"),
    [
        ("me/nothing", None, "hub_unavailable", "'me/nothing': there is no such folder here"),
        ("./nowhere", None, "invalid_folder", "no such folder"),
        (".", "v2", "invalid_option", "give no revision"),
    ],
)
def test_what_is_not_there_is_an_error(
    place: str, revision: str | None, code: str, problem: str
) -> None:
    with raises(code, match=problem), fetched(place, revision=revision, files=FILES):
        pass


@pytest.mark.parametrize("name", ["not/an/id", "sp ace/x"])
def test_a_malformed_name_is_an_error(
    version: tuple[TaskManifest, dict[str, bytes]], there: FakeHub, name: str
) -> None:
    with raises("hub_unavailable", match="check its name"):
        push(*version, name, private=True)

    assert there.repositories == {}


def test_a_hub_that_cannot_be_reached_is_an_error(
    version: tuple[TaskManifest, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hub() as gone:
        pass
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", gone.address)

    with raises("hub_unavailable", match="your network"):
        push(*version, "me/tone", private=True)


@pytest.mark.parametrize(
    ("scored", "data"),
    [
        ("d", {"name": "mail", "type": "mail", "split": "dev"}),
        # As after a conversion.
        ("e", {"name": "labelled examples", "type": "labelled examples"}),
    ],
)
def test_the_readme_has_the_fields_that_the_hub_reads(
    tmp_path: Path, backbone: Backbone, scored: str, data: dict[str, str]
) -> None:
    digest = "d" * 64
    named = {
        **tiny_task(backbone)[0].backbone.model_dump(),
        "name": "sentence-transformers/all-MiniLM-L6-v2",
    }
    folder = written(
        tmp_path / "out",
        backbone,
        backbone=named,
        metrics=(
            MetricRecord(name="accuracy", value=0.9, data_digest=64 * scored, num_examples=9),
        ),
        data=DataRecord(
            name="mail", train_digest=digest, dev_digest=digest, num_train=9, num_dev=9
        ),
    )

    fields = front_matter(folder)

    assert fields["library_name"] == "nunatak"
    assert fields["pipeline_tag"] == "text-classification"
    assert fields["tags"] == ["nunatak", "topk"]
    assert fields["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert fields["model-index"] == [
        {
            "name": "tone",
            "results": [
                {
                    "task": {"type": "text-classification"},
                    "dataset": data,
                    "metrics": [{"type": "accuracy", "value": 0.9}],
                }
            ],
        }
    ]


def test_the_readme_commands_no_terminal(tmp_path: Path, backbone: Backbone) -> None:
    named = {**tiny_task(backbone)[0].backbone.model_dump(), "name": f"owner/{HOSTILE_FILE_NAME}"}
    digest = "d" * 64
    folder = written(
        tmp_path / "out",
        backbone,
        backbone=named,
        note=HOSTILE,
        metrics=(MetricRecord(name=HOSTILE[:64], value=0.9, data_digest=digest, num_examples=9),),
        data=DataRecord(
            name=HOSTILE, train_digest=digest, dev_digest=digest, num_train=9, num_dev=9
        ),
    )

    assert obeyed((folder / "README.md").read_text(encoding="utf-8")) == set()
    assert str(front_matter(folder)["base_model"]).startswith("owner/evil[b]")


def test_the_name_of_a_folder_is_no_base_model(pushed: Path) -> None:
    assert "base_model" not in front_matter(pushed)
    assert "model-index" not in front_matter(pushed)


@pytest.mark.parametrize(
    ("kind", "tag"),
    [
        (HeadKind.TOKEN_CLASSIFICATION, "token-classification"),
        (HeadKind.QUESTION_ANSWERING, "question-answering"),
        (HeadKind.RANKING, "text-ranking"),
    ],
)
def test_every_kind_of_head_has_its_pipeline(
    tmp_path: Path, backbone: Backbone, kind: HeadKind, tag: str
) -> None:
    draft, blobs = tiny_task(backbone, kind=kind)
    write_hub_folder(TaskManifest(**draft.model_dump(), version=1), blobs, tmp_path / "out")

    assert front_matter(tmp_path / "out")["pipeline_tag"] == tag


def test_a_pulled_version_is_published_under_its_new_name_with_its_origin(
    pushed: Path, backbone: Backbone, tmp_path: Path
) -> None:
    draft = draft_pulled(read_hub_folder(pushed), backbone, task="mood", origin="me/tone@c0ffee")

    with Registry.open(tmp_path / "registry") as registry:
        manifest = registry.publish(draft.manifest, draft.blobs)
    assert manifest.reference == "mood/1"
    assert manifest.note == "pulled from me/tone@c0ffee, where it was tone/3"
    there = tiny_task(backbone)[0]
    assert (manifest.probe, manifest.created_at) == (there.probe, there.created_at)


def test_without_a_name_it_is_called_as_there(pushed: Path, backbone: Backbone) -> None:
    found = read_hub_folder(pushed)

    assert draft_pulled(found, backbone, task=None, origin="x").manifest.task == "tone"
    with pytest.raises(InvalidNameError):
        draft_pulled(found, backbone, task="../x", origin="x")


def test_notes_are_kept_as_far_as_there_is_room(tmp_path: Path, backbone: Backbone) -> None:
    folder = written(tmp_path / "out", backbone, note="n" * 4096)

    note = draft_pulled(read_hub_folder(folder), backbone, task=None, origin="me/tone")

    assert note.manifest.note.startswith("pulled from me/tone, where it was tone/3; nnn")
    assert len(note.manifest.note) == 4096


def change_manifest(folder: Path, **changes: object) -> None:
    fields = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**fields, **changes}))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def link_outside(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / "parameters.safetensors").rename(outside)
    (folder / "parameters.safetensors").symlink_to(outside)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-manifest": (lambda it: (it / "manifest.json").unlink(), "invalid_folder"),
    "manifest-is-no-json": (lambda it: (it / "manifest.json").write_text("{"), "corrupt_file"),
    "unknown-field": (lambda it: change_manifest(it, auto_map="x"), "corrupt_file"),
    "later-schema": (lambda it: change_manifest(it, schema_version=2), "corrupt_file"),
    "hostile-role": (
        lambda it: change_manifest(
            it, blobs=[{"role": "../../x", "sha256": "a" * 64, "size_bytes": 1}]
        ),
        "corrupt_file",
    ),
    "no-blob": (lambda it: (it / "parameters.safetensors").unlink(), "invalid_folder"),
    "one-bit-flipped": (lambda it: flip(it / "parameters.safetensors"), "corrupt_file"),
    "link-out-of-the-folder": (link_outside, "escaping_file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused(pushed: Path, name: str) -> None:
    damage, code = DAMAGES[name]
    damage(pushed)

    with raises(code):
        read_hub_folder(pushed)


def test_a_version_of_another_backbone_is_refused(pushed: Path) -> None:
    other = tiny_backbone(num_layers=2, seed=1)

    with raises("backbone_mismatch"):
        draft_pulled(read_hub_folder(pushed), other, task=None, origin="x")


def test_a_version_that_answers_otherwise_than_it_says_is_refused(
    pushed: Path, backbone: Backbone
) -> None:
    probe = json.loads((pushed / "manifest.json").read_bytes())["probe"]
    probe["logits"][0][0] += 0.01
    change_manifest(pushed, probe=probe)

    with raises("probe_failed"):
        draft_pulled(read_hub_folder(pushed), backbone, task=None, origin="x")


def test_a_version_without_parameters_is_refused(pushed: Path, backbone: Backbone) -> None:
    fields = json.loads((pushed / "manifest.json").read_bytes())
    change_manifest(pushed, blobs=[{**fields["blobs"][0], "role": "extra"}])
    (pushed / "parameters.safetensors").rename(pushed / "extra.safetensors")

    with raises("invalid_folder", match="parameters"):
        draft_pulled(read_hub_folder(pushed), backbone, task=None, origin="x")


@pytest.mark.parametrize(("umask", "modes"), [(0o022, (0o755, 0o644)), (0o077, (0o700, 0o600))])
def test_a_folder_is_as_open_as_the_umask_says(
    umask: int, modes: tuple[int, int], tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        with new_folder(tmp_path / "out") as made:
            (made / "closed").touch(0o600)
    finally:
        os.umask(before)

    found = (tmp_path / "out", tmp_path / "out" / "closed")
    assert tuple(it.stat().st_mode & 0o777 for it in found) == modes


def test_a_folder_that_a_killed_writer_left_goes_when_it_is_written_again(tmp_path: Path) -> None:
    target, others = tmp_path / "out", [tmp_path / ".out.d", tmp_path / ".out2.unfinished-a"]
    left = tmp_path / ".out.unfinished-a"
    for folder in (*others, left):
        folder.mkdir()

    with raises("folder_in_use"), new_folder(target) as first, new_folder(target) as second:
        assert first.is_dir()
        (second / "x").touch()
        target.mkdir()
        (target / "of another process").touch()

    assert sorted(tmp_path.iterdir()) == sorted([*others, target])
    assert [it.name for it in target.iterdir()] == ["of another process"]
