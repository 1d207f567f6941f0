"""Laws of `nunatak key`."""

from pathlib import Path

import pytest

from doubles.terminals import nunatak
from nunatak_server.access.keys import digest_of, read_keys
from nunatak_server.scheduler.turns import Quota


def test_a_key_is_shown_once_and_kept_as_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    ran = nunatak(
        *("key", "create", "support", "--file", str(path), "--scope", "read"),
        *("--scope", "predict", "--task", "tone", "--task", "eu-*", "--weight", "2", "--days", "7"),
    )

    key = ran.stdout.strip()
    assert ran.exit_code == 0
    assert "\n" not in key
    (record,) = read_keys(path)[0]
    assert record.sha256 == digest_of(key.encode())
    assert (record.scopes, record.tasks, record.weight) == (
        {"read", "predict"},
        ("tone", "eu-*"),
        2,
    )
    assert record.expires_at is not None
    assert (record.expires_at - record.created_at).days == 7
    assert key not in path.read_text() + nunatak("key", "list", "--file", str(path)).stdout


def test_a_key_has_the_quotas_that_are_named_and_by_default_none_and_all_tasks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.json"
    named = ("--max-requests-per-minute", "60", "--max-tokens-per-day", "5000000")

    nunatak("key", "create", "plain", "--file", str(path))
    assert "quotas" not in path.read_text()
    nunatak("key", "create", "limited", "--file", str(path), *named)

    plain, limited = read_keys(path)[0]
    assert (plain.quotas, plain.caller.quotas) == (None, {})
    assert (plain.scopes, plain.tasks, plain.expires_at) == ({"predict"}, ("*",), None)
    assert limited.caller.quotas == {Quota.REQUESTS_PER_MINUTE: 60, Quota.TOKENS_PER_DAY: 5_000_000}
    assert "60 requests per minute" in nunatak("key", "list", "--file", str(path)).stdout


def test_a_revoked_key_is_gone_and_its_neighbours_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for name in ("one", "two"):
        nunatak("key", "create", name, "--file", str(path))

    assert nunatak("key", "revoke", "one", "--file", str(path)).exit_code == 0

    assert [record.name for record in read_keys(path)[0]] == ["two"]


def test_keys_are_listed_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    nunatak("key", "create", "one", "--file", str(path), "--scope", "admin")

    (key,) = nunatak("key", "list", "--file", str(path), "--json").json()["keys"]

    assert (key["name"], key["scopes"]) == ("one", ["admin"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "one"),
        ("create", "Upper"),
        ("create", "two", "--task", "t*ne"),
        ("revoke", "nobody"),
    ],
)
def test_a_slip_is_one_line_and_changes_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "keys.json"
    nunatak("key", "create", "one", "--file", str(path))
    content = path.read_bytes()

    ran = nunatak("key", *arguments, "--file", str(path))

    ran.assert_refused("invalid_option")
    assert "Value error" not in ran.stderr
    assert path.read_bytes() == content


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    nunatak("key", "list", "--file", str(tmp_path / "keys.json")).assert_refused("invalid_key_file")


def test_a_server_without_keys_does_not_open_to_other_machines() -> None:
    ran = nunatak("serve", "--host", "192.0.2.1")

    ran.assert_refused("invalid_settings", "nunatak key create")
