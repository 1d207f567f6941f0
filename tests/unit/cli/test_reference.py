"""The committed reference of settings matches the settings."""

import re
from pathlib import Path

from docs.configuration import BEGIN, END, with_settings
from nunatak_cli.serving.serve import SECTIONS
from nunatak_server.settings import ServerSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SOURCES = ("registry", "training", "server", "clients")


def test_the_committed_page_is_up_to_date() -> None:
    assert with_settings(PAGE) == PAGE, "run `make configuration`"


def test_what_is_written_by_hand_stays() -> None:
    page = with_settings(f"above\n{BEGIN}gone{END}\nbelow\n")

    assert page.startswith(f"above\n{BEGIN}\n\n## ")
    assert page.endswith(f" |\n\n{END}\nbelow\n")


def test_every_setting_says_what_it_means() -> None:
    for name, field in ServerSettings.model_fields.items():
        assert field.description, name


def test_every_section_begins_at_a_setting() -> None:
    assert set(SECTIONS) <= set(ServerSettings.model_fields)


def test_every_option_of_serve_that_is_a_setting_stands_next_to_it() -> None:
    assert "| `NUNATAK_MAX_INPUTS` | `--max-inputs` | `64` |" in PAGE
    assert "| `NUNATAK_PINS` | `--pins` |" in PAGE
    assert "| `NUNATAK_GRACE_S` | `--grace-s` | `30` |" in PAGE


def test_every_variable_that_the_sources_name_is_on_the_page() -> None:
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            for name in re.findall(r"(?<!_)NUNATAK_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")):
                assert f"`{name}`" in PAGE, f"{path.relative_to(ROOT)}: {name}"
