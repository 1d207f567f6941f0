import shutil
from pathlib import Path

import pytest

from doubles.drafts import publish_one
from nunatak_registry import Registry, StoreUnavailableError
from nunatak_registry.locations import LOCATION_VARIABLE, default_location, parse_location


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "mnt").mkdir()
    return tmp_path / "mnt"


def open_registry(folder: Path, name: str = "index", *, create: bool = False) -> Registry:
    return Registry.open(f"sqlite:///{folder}/{name}.db?blobs={folder}/mnt/blobs", create=create)


def test_environment_names_the_default_location_and_else_it_is_a_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value, place in (("/srv/tasks", "/srv/tasks"), ("", "nunatak/registry")):
        monkeypatch.setenv(LOCATION_VARIABLE, value)
        assert default_location().endswith(place)
    monkeypatch.delenv(LOCATION_VARIABLE)
    assert default_location().endswith("nunatak/registry")


def test_url_names_index_and_blobs_and_keeps_other_options() -> None:
    place = parse_location("postgresql+psycopg://u:p@h:1/db?blobs=s3://b/p&connect_timeout=3")

    assert place.folder is None
    assert place.blob_root == "s3://b/p"
    assert dict(place.index_url.query) == {"connect_timeout": "3"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush@h/db",
        "postgresql://u:hush@h/db?blobs=",
        "postgresql://u:hush@h/db?blobs=a&blobs=b",
        "post gres://u:hush@h/db?blobs=a",
        "postgresql://u:hush@h:port/db?blobs=a",
    ],
)
def test_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        parse_location(url)

    assert "hush" not in str(caught.value)


def test_a_publish_without_the_volume_of_the_blobs_is_refused_and_writes_nothing(
    tmp_path: Path, mount: Path
) -> None:
    with open_registry(tmp_path, create=True) as registry:
        publish_one(registry, "tone", 1)
    mount.rename(tmp_path / "volume")
    mount.mkdir()

    with open_registry(tmp_path) as registry:
        for seed in (1, 2):
            with pytest.raises(StoreUnavailableError, match="mount its volume"):
                publish_one(registry, "tone", seed)
        assert list(mount.rglob("*")) == []

        mount.rmdir()
        (tmp_path / "volume").rename(mount)
        assert [publish_one(registry, "tone", seed).version for seed in (1, 2)] == [1, 2]
        assert all(map(registry.read_blob, registry.versions("tone")))


def test_a_publish_into_the_blobs_of_another_registry_is_refused(
    tmp_path: Path, mount: Path
) -> None:
    with open_registry(tmp_path, create=True) as registry:
        publish_one(registry, "tone", 1)
    mount.rename(tmp_path / "volume")
    with open_registry(tmp_path, "other", create=True) as other:
        publish_one(other, "tone", 5)

    with (
        open_registry(tmp_path) as registry,
        pytest.raises(StoreUnavailableError, match="none of the blobs of this registry"),
    ):
        publish_one(registry, "tone", 2)


def test_a_copy_without_the_volume_of_the_target_is_refused(tmp_path: Path, mount: Path) -> None:
    with (
        Registry.open(tmp_path / "source") as source,
        open_registry(tmp_path, create=True) as target,
    ):
        publish_one(source, seed=2)
        publish_one(target, "tone", 1)
        shutil.move(mount / "blobs", tmp_path / "elsewhere")

        with pytest.raises(StoreUnavailableError, match="mount its volume"):
            target.copies.take("intent", source.copies)

        assert target.names() == ("tone",)
        assert not (mount / "blobs").exists()


def test_all_blobs_may_be_lost_and_published_again(tmp_path: Path, mount: Path) -> None:
    with open_registry(tmp_path, create=True) as registry:
        publish_one(registry, "tone", 1)
        shutil.rmtree(mount / "blobs" / "sha256")
        (mount / "blobs" / "sha256").mkdir()

        assert publish_one(registry, "tone", 1).version == 1
        assert registry.read_blob(registry.resolve("tone/1"))
