"""Laws of the settings."""

from pathlib import Path

import pytest

from nunatak_loadtest import LoadTestSettings, UserSettings
from nunatak_loadtest.errors import InvalidSettingsError
from nunatak_loadtest.texts import DEFAULT_TEXTS, read_texts


def test_settings_survive_the_environment(tmp_path: Path) -> None:
    settings = UserSettings(
        tasks=("tone", "intent@prod", "attack/2"),
        text_file=tmp_path / "texts.txt",
        samples=tmp_path / "samples.jsonl",
        seed=7,
    )

    assert UserSettings.from_environment(settings.to_environment()) == settings


def test_absent_files_stay_absent_in_the_environment() -> None:
    settings = UserSettings(tasks=("tone",))

    assert UserSettings.from_environment(settings.to_environment()) == settings


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no-tasks"),
        pytest.param({"NUNATAK_LOADTEST_TASKS": " , "}, id="blank-tasks"),
        pytest.param(
            {"NUNATAK_LOADTEST_TASKS": "tone", "NUNATAK_LOADTEST_SEED": "x"}, id="seed-no-number"
        ),
    ],
)
def test_environment_that_no_user_can_follow_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingsError):
        UserSettings.from_environment(environment)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"user": {"tasks": []}}, id="no-tasks"),
        pytest.param({"user": {"tasks": ["a,b"]}}, id="comma-in-a-task"),
        pytest.param({"user": {"tasks": ["a"]}, "users": 0}, id="nobody"),
        pytest.param({"user": {"tasks": ["a"]}, "duration_s": 0}, id="no-time"),
    ],
)
def test_settings_that_no_run_can_follow_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidSettingsError):
        LoadTestSettings.checked(**values)


def test_default_texts_are_a_dozen_of_varied_length() -> None:
    lengths = sorted(len(text) for text in DEFAULT_TEXTS)

    assert len(set(DEFAULT_TEXTS)) == 12
    assert lengths[-1] > 10 * lengths[0]
    assert UserSettings(tasks=("tone",)).texts() == DEFAULT_TEXTS


def test_text_file_holds_one_text_per_line(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one\n\n  two  \n", encoding="utf-8")

    assert read_texts(file) == ("one", "two")


@pytest.mark.parametrize(
    "content", [pytest.param(b"\n \n", id="blank"), pytest.param(b"\xff\xfe", id="not-utf8")]
)
def test_text_file_without_texts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)

    with pytest.raises(InvalidSettingsError):
        read_texts(file)


def test_missing_text_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match=r"absent\.txt"):
        read_texts(tmp_path / "absent.txt")
