"""Blobs in a bucket of a real S3 server. `test_copying.py` copies between S3 and PostgreSQL."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from doubles.drafts import make_draft, publish_one
from doubles.object_stores import ObjectStore
from doubles.postgres import PostgresServer
from nunatak_registry import (
    CorruptBlobError,
    FindingKind,
    Registry,
    StoreReadOnlyError,
    StoreUnavailableError,
)

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def bucket(bucket_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in bucket_server.environment.items():
        monkeypatch.setenv(name, value)
    return bucket_server.create_bucket()


@pytest.fixture
def location(tmp_path: Path, bucket: str) -> str:
    return f"sqlite:///{tmp_path / 'index.db'}?blobs=s3://{bucket}/tasks"


@pytest.fixture
def registry(location: str) -> Generator[Registry]:
    with Registry.open(location, clock=lambda: LATER) as registry:
        yield registry


def put(bucket_server: ObjectStore, bucket: str, key: str, data: bytes) -> None:
    client = bucket_server.client()
    client.put_object(Bucket=bucket, Key=f"tasks/{key}", Body=data)


def keys(bucket_server: ObjectStore, bucket: str) -> list[str]:
    client = bucket_server.client()
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_versions_live_and_die_in_a_bucket(
    registry: Registry, location: str, bucket_server: ObjectStore, bucket: str
) -> None:
    manifest = publish_one(registry, seed=0)
    publish_one(registry, seed=1)
    registry.promote("intent", "prod", 2)
    with Registry.open(location) as other:
        assert other.read_blob(other.resolve("intent/1")) == make_draft(seed=0)[1]["parameters"]
    assert registry.verify() == []

    registry.delete("intent", 1)
    assert registry.read_blob(manifest)
    assert registry.gc(grace_s=0).removed_blobs == (manifest.blobs[0].sha256,)
    assert registry.verify() == []
    assert len(keys(bucket_server, bucket)) == 1


def test_damaged_object_is_refused_quarantined_and_healed(
    registry: Registry, bucket_server: ObjectStore, bucket: str
) -> None:
    bad, good = publish_one(registry, "bad", seed=0), publish_one(registry, "good", seed=1)
    digest = bad.blobs[0].sha256
    put(bucket_server, bucket, f"sha256/{digest[:2]}/{digest}", b"damaged")

    with pytest.raises(CorruptBlobError):
        registry.read_blob(bad)
    (finding,) = registry.verify(quarantine=True)
    assert (finding.subject, finding.kind) == ("bad/1", FindingKind.BLOB)
    assert f"tasks/{finding.moved_to}" in keys(bucket_server, bucket)
    assert registry.read_blob(good)

    assert publish_one(registry, "bad", seed=0) == bad
    assert registry.verify() == []


def test_strange_objects_are_found(
    registry: Registry, bucket_server: ObjectStore, bucket: str
) -> None:
    publish_one(registry)
    put(bucket_server, bucket, "README", b"hello")
    put(bucket_server, bucket, "sha256/ab/README", b"hello")

    found = {finding.subject: finding.moved_to for finding in registry.verify(quarantine=True)}

    assert found.keys() == {"README", "sha256/ab/README"}
    assert found["README"] is None
    assert found["sha256/ab/README"] is not None


def test_racing_publishers_lose_nothing(registry: Registry) -> None:
    start = threading.Barrier(4)

    def publish(worker: int) -> None:
        start.wait()
        for seed in range(4):
            publish_one(registry, f"task{worker}", seed=seed)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(4)))

    assert [task.versions for task in registry.tasks()] == [(1, 2, 3, 4)] * 4
    assert registry.verify() == []


def test_bucket_that_does_not_exist_is_unavailable_and_leaves_no_version(
    tmp_path: Path, bucket: str
) -> None:
    location = f"sqlite:///{tmp_path / 'index.db'}?blobs=s3://no-{bucket}/tasks"

    with Registry.open(location) as registry:
        with pytest.raises(StoreUnavailableError, match="object store"):
            publish_one(registry)
        assert registry.tasks() == []


def test_unreachable_server_is_unavailable_and_the_password_is_not_quoted(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://user:hush@/database?host={tmp_path}&blobs={tmp_path}"

    with pytest.raises(StoreUnavailableError, match="index refused") as caught:
        Registry.open(url)

    assert "hush" not in str(caught.value)
    assert "hush" not in str(caught.value.__cause__)


@pytest.mark.parametrize("scheme", ["mysql", "oracle", "file", "https"])
def test_other_databases_are_refused(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(StoreUnavailableError):
        Registry.open(f"{scheme}://user:hush@host/database?blobs={tmp_path}")


def test_a_standby_takes_no_changes_until_its_name_means_the_primary(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.create_database()
    place = f"{url}&blobs={tmp_path}"
    with Registry.open(place) as primary:
        manifest = publish_one(primary)
    # A standby refuses changes with the code of such a session.
    session = sql.SQL(
        "ALTER ROLE CURRENT_USER IN DATABASE {} SET default_transaction_read_only = {}"
    )
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as operator:
        database = sql.Identifier(operator.info.dbname)
        operator.execute(session.format(database, sql.SQL("on")))
        with Registry.open(place) as registry:
            assert registry.resolve("intent") == manifest
            for change in (
                lambda: publish_one(registry, seed=1),
                lambda: registry.promote("intent", "prod", 1),
                lambda: registry.hold("server", [("intent", 1)], seconds=60),
            ):
                with pytest.raises(StoreReadOnlyError, match="name the primary") as caught:
                    change()
                assert str(postgres.socket_folder) not in str(caught.value)
            operator.execute(session.format(database, sql.SQL("off")))
            registry.promote("intent", "prod", 1)


def test_role_that_may_only_read_reads_all_and_changes_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.create_database()
    place = f"{url}&blobs={tmp_path}"
    with Registry.open(place) as owner:
        manifest = publish_one(owner)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE ROLE spectator LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO spectator")

    with Registry.open(place.replace("nunatak@", "spectator@")) as spectator:
        assert spectator.resolve("intent") == manifest
        assert spectator.read_blob(manifest) == make_draft()[1]["parameters"]
        assert spectator.verify() == []
        for change in (
            lambda: publish_one(spectator, seed=1),
            lambda: spectator.promote("intent", "prod", 1),
            lambda: spectator.delete("intent", 1),
            lambda: spectator.hold("server", [("intent", 1)], seconds=60),
        ):
            with pytest.raises(StoreUnavailableError, match="permission denied"):
                change()
