"""Laws of `nunatak task verify`."""

from pathlib import Path

from doubles.backbones import save_tiny_backbone
from doubles.damage import write_rows
from doubles.terminals import nunatak
from nunatak_registry import Registry


def test_verify_of_a_whole_registry_finds_nothing(place: tuple[str, str]) -> None:
    assert nunatak("task", "verify", *place).exit_code == 0
    found = nunatak("task", "verify", "intent", "--json", *place).json()
    assert found == {"errors": 0, "checks": []}


def test_a_damaged_manifest_is_named_and_the_other_versions_are_probed(
    place: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE version = ?", "2")
    other = save_tiny_backbone(tmp_path / "other")

    ran = nunatak("task", "verify", "--probe", "--backbone", str(other), "--json", *place)

    kinds = {it["subject"]: it["kind"] for it in ran.json()["checks"]}
    assert kinds["intent/1"] == kinds["intent/3"] == "not_probed"
    assert kinds["intent/2"] not in {"", "not_probed"}


def test_verify_names_the_damaged_version_fails_and_moves_its_file_aside_on_request(
    place: tuple[str, str], registry: Registry, folder: Path
) -> None:
    digest = registry.resolve("intent/1").blobs[0].sha256
    (blob,) = folder.glob(f"blobs/**/{digest}")
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")

    ran = nunatak("task", "verify", *place)
    assert ran.exit_code == 1
    assert "intent/1" in ran.stdout
    assert blob.exists()

    ran = nunatak("task", "verify", "--quarantine", "--json", *place)
    assert (ran.exit_code, ran.json()["errors"]) == (1, 1)
    assert "moved to quarantine/" in ran.stdout
    assert not blob.exists()
    (moved,) = folder.glob(f"blobs/quarantine/*/{digest}")
    assert moved.read_bytes() == b"damaged"
