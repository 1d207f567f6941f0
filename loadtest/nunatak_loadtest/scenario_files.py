"""Scenario files: the ones that come with the package, by name, and anybody's own, by path."""

import tomllib
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from nunatak_loadtest.errors import InvalidSettingsError, first_problem
from nunatak_loadtest.scenario import Scenario

SUFFIX = ".toml"


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    found = files("nunatak_loadtest").joinpath("scenarios").iterdir()
    names = (Path(entry.name) for entry in found)
    return tuple(sorted(name.stem for name in names if name.suffix == SUFFIX))


def load_scenario(name_or_path: str) -> Scenario:
    """Read a scenario by its name, or from a file that ends in `.toml`.

    Raises:
        InvalidSettingsError: there is none of this name, or the file is no scenario.
    """
    if name_or_path.endswith(SUFFIX):
        return parse_scenario(_read(Path(name_or_path)), source=name_or_path)
    if name_or_path not in scenario_names():
        known = ", ".join(scenario_names())
        raise InvalidSettingsError(
            f"no scenario {name_or_path!r}; expected one of {known}, or a path ending in {SUFFIX}"
        )
    file = files("nunatak_loadtest").joinpath("scenarios", name_or_path + SUFFIX)
    return parse_scenario(file.read_text(encoding="utf-8"), source=name_or_path)


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Read a scenario from TOML.

    Raises:
        InvalidSettingsError: it is no TOML, or not a scenario.
    """
    try:
        return Scenario.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettingsError(f"{source} is no TOML: {error}") from error
    except ValidationError as error:
        raise InvalidSettingsError(f"{source}: {first_problem(error)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSettingsError(f"a scenario is UTF-8, but {path} is not: {error}") from error
