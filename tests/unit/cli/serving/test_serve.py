"""Laws of the options of `nunatak serve`; serving itself is tried end to end."""

import pytest

from doubles.terminals import WIDE, nunatak
from nunatak_server.settings import ServerSettings


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
        assert str(field.description)[:30] in shown


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
        (("--port", "1", "--port", "2"), "port: "),
        (("--dtype", "int4"), "dtype: "),
        (("--trunk-cache-bytes", "-1"), "trunk_cache_bytes: "),
        (("--pins", "No Name"), "pins: "),
    ],
)
def test_a_flag_that_sets_nothing_possible_is_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    ran = nunatak("serve", *arguments)

    assert ran.exit_code == 1
    assert message in ran.stderr
    assert "(from: file" not in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_registry_of_the_environment_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDE, "NUNATAK_REGISTRY", "somewhere")

    ran = nunatak("serve", "--show-config")

    assert 'registry = "somewhere"  # environment\n' in ran.stdout
