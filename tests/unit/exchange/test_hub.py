"""Pushing to and pulling from folders and a hub over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.hubs import FakeHub, running_hub
from doubles.refusals import raises
from doubles.tasks import publish_tiny_task
from nunatak_contract.manifest import TaskManifest
from nunatak_exchange.hub import (
    FILES,
    HubUnavailableError,
    HuggingFaceHub,
    fetched,
    is_folder,
    push,
    read_hub_folder,
)
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
    hub = HuggingFaceHub(endpoint=there.address)

    address = push(*version, "me/tone", hub=hub, private=private)

    assert address == f"{there.address}/me/tone"
    assert there.private == {"me/tone": private}
    assert there.messages == ["Push tone/1"]
    assert set(there.repositories["me/tone"]) == {
        "README.md",
        "manifest.json",
        "parameters.safetensors",
    }
    assert b"nunatak task pull me/tone --task tone" in there.repositories["me/tone"]["README.md"]
    with fetched("me/tone", hub=hub, revision=None, files=FILES) as found:
        task = read_hub_folder(found.folder)
    assert (task.manifest, dict(task.blobs)) == version
    assert found.origin == f"me/tone@{there.commit('me/tone')}"
    assert not found.folder.exists()


def test_what_is_pushed_to_a_folder_is_fetched_from_it(
    version: tuple[TaskManifest, dict[str, bytes]], tmp_path: Path
) -> None:
    place = str(tmp_path / "tone")
    hub = HuggingFaceHub(endpoint="http://127.0.0.1:9")

    assert push(*version, place, hub=hub, private=True) == place

    with fetched(place, hub=hub, revision=None, files=FILES) as found:
        assert read_hub_folder(found.folder).manifest == version[0]
        assert found.origin == "tone"
    assert found.folder.is_dir()
    with raises("folder_in_use"):
        push(*version, place, hub=hub, private=True)


def test_a_repository_that_is_not_there_is_an_error(there: FakeHub) -> None:
    hub = HuggingFaceHub(endpoint=there.address)

    with (
        pytest.raises(HubUnavailableError, match="'me/nothing': there is no such folder here"),
        fetched("me/nothing", hub=hub, revision=None, files=FILES),
    ):
        pass


@pytest.mark.parametrize("name", ["not/an/id", "sp ace/x"])
def test_a_malformed_name_is_an_error(
    version: tuple[TaskManifest, dict[str, bytes]], there: FakeHub, name: str
) -> None:
    with pytest.raises(HubUnavailableError, match="check its name"):
        push(*version, name, hub=HuggingFaceHub(endpoint=there.address), private=True)

    assert there.repositories == {}


def test_a_hub_that_cannot_be_reached_is_an_error(
    version: tuple[TaskManifest, dict[str, bytes]],
) -> None:
    with running_hub() as gone:
        pass

    with pytest.raises(HubUnavailableError, match="your network"):
        push(*version, "me/tone", hub=HuggingFaceHub(endpoint=gone.address), private=True)


def test_a_folder_that_is_not_there_is_an_error() -> None:
    with (
        raises("invalid_folder", match="no such folder"),
        fetched("./nowhere", hub=HuggingFaceHub(), revision=None, files=FILES),
    ):
        pass
