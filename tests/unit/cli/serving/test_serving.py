"""Laws of `nunatak serve`, `key`, `loadtest` and `savings`; serving itself is tried end to end."""

from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.terminals import WIDE, nunatak
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_model import model_size, parameters_saved, usual_head
from nunatak_server.access.keys import digest_of, read_keys
from nunatak_server.errors import WRONG_SETTINGS
from nunatak_server.scheduler.turns import Quota
from nunatak_server.settings import ServerSettings


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> str:
    save_tiny_backbone(tmp_path / "tiny", num_layers=3)
    return str(tmp_path / "tiny")


def test_the_configuration_is_printed_with_its_origins() -> None:
    ran = nunatak("serve", "--show-config", "--port", "7", "--no-access-log")

    assert ran.exit_code == 0
    assert "port = 7  # flag\n" in ran.stdout
    assert "access_log = false  # flag\n" in ran.stdout
    assert 'host = "127.0.0.1"  # default\n' in ran.stdout


def test_every_setting_has_an_option_with_its_description() -> None:
    shown = nunatak("serve", "--help").stdout

    for name, field in ServerSettings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert field.description, name
        assert field.description[:30] in shown


def test_a_repeated_option_gives_several_values() -> None:
    ran = nunatak(
        *("serve", "--show-config", "--batch-overhead", "0.25", "--pins", "tone@prod,b"),
        *("--pins", "topic/3", "--backbone", "one", "--backbone", "two"),
    )

    assert "batch_overhead = 0.25  # flag\n" in ran.stdout
    assert 'pins = "tone@prod,b,topic/3"  # flag\n' in ran.stdout
    assert 'backbone = "one"  # flag\nother_backbones = "two"  # flag\n' in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-overhead", "2"), "batch_overhead: "),
        (("--port", "65536"), "port: "),
        (("--port", "1", "--port", "2"), "port: expected one value, got 1 and 2"),
        (("--audit-log", "a", "--audit-log", "b"), "audit_log: expected one value, got a and b"),
        (("--dtype", "int4"), "dtype: "),
        (("--trunk-cache-bytes", "-1"), "trunk_cache_bytes: "),
        (("--pins", "No Name"), "pins: "),
        # A server without keys does not open to other machines.
        (("--host", "192.0.2.1"), "nunatak key create"),
    ],
)
def test_a_flag_that_sets_nothing_possible_is_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    ran = nunatak("serve", *arguments)

    # What is possible with keys may be mended by a file, and so a new start may help.
    status = 1 if "--host" in arguments else WRONG_SETTINGS
    ran.assert_refused("invalid_settings", message, status=status)
    assert "(from: file" not in ran.stderr


def test_a_registry_of_the_environment_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDE, "NUNATAK_REGISTRY", "somewhere")

    ran = nunatak("serve", "--show-config")

    assert 'registry = "somewhere"  # environment\n' in ran.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("loadtest run --task tone --json", "connection_failed", ""),
        # The file is read before the server is asked.
        ("loadtest run --json --text-file no.txt", "unreadable_file", "no.txt: cannot be read"),
        ("loadtest run absent", "invalid_settings", "no scenario 'absent'; expected one of users,"),
        ("savings --tasks 2 --backbone ./nothing-here", "backbone_not_found", ""),
    ],
)
def test_what_cannot_be_measured_is_one_line(command: str, code: str, said: str) -> None:
    nunatak(*command.split(), "--server", "http://127.0.0.1:9").assert_refused(code, said)


def test_scenarios_are_listed_with_what_they_are() -> None:
    ran = nunatak("loadtest", "scenarios")

    assert "fanout8    Eight of up to sixteen tasks about each text" in ran.stdout


def test_folder_with_an_earlier_run_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "run-users.json").write_text("{}")

    ran = nunatak("loadtest", "run", "users", "--out", str(tmp_path))

    assert ran.exit_code == 1
    assert "never overwritten" in ran.stderr
    assert (tmp_path / "run-users.json").read_text() == "{}"


def test_every_number_of_own_layers_has_the_share_of_the_formula(folder: str) -> None:
    found = nunatak("savings", "--backbone", folder, "--tasks", "8", "--json").json()

    config = tiny_backbone(num_layers=3).config
    head = usual_head(
        config, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2, pooling=Pooling.MEAN
    )
    size = model_size(config, head)
    assert [row["own_layers"] for row in found["by_own_layers"]] == [0, 1, 2, 3]
    for row in found["by_own_layers"]:
        saved = parameters_saved(size, num_tasks=8, num_frozen=row["frozen_layers"])
        assert row["frozen_layers"] == 3 - row["own_layers"]
        assert row["saved_share"] == pytest.approx(saved, rel=1e-9)
        shared = found["dedicated_bytes"] * (1 - row["saved_share"])
        assert row["shared_bytes"] == pytest.approx(shared, abs=1)


def test_people_get_a_table(folder: str) -> None:
    shown = nunatak("savings", "--backbone", folder, "--tasks", "2").stdout

    assert "2 full models, MB" in shown
    assert "own layers" in shown


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
