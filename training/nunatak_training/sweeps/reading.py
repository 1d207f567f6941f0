"""Sweep files: YAML or TOML, with what the command line says in place of theirs."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import yaml
from pydantic import JsonValue, ValidationError

from nunatak_training.errors import InvalidSweepError
from nunatak_training.sweeps.grid import Grid

YAML_SUFFIXES = (".yaml", ".yml")


def read_grid(path: Path | None, changes: Mapping[str, JsonValue] | None = None) -> Grid:
    """Read a sweep file; `changes` take the place of its axes by name, and can be all there is.

    Raises:
        InvalidSweepError: there is no such file, it is neither YAML nor TOML, or names what a
            sweep does not know.
    """
    where = "options" if path is None else path.name
    settings = dict[str, object]() if path is None else _settings(path)
    try:
        return Grid.model_validate({**settings, **(changes or {})})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'sweep'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise InvalidSweepError(where, problems) from error


def _settings(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix not in YAML_SUFFIXES:
            raise InvalidSweepError(path.name, "expected a name that ends in .yaml, .yml or .toml")
        loaded: object = yaml.safe_load(text)
    except OSError as error:
        raise InvalidSweepError(path.name, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise InvalidSweepError(path.name, f"cannot be parsed: {error}") from error
    if not isinstance(loaded, dict):
        raise InvalidSweepError(path.name, f"expected settings by name, got {loaded!r:.40}")
    return cast("Mapping[str, object]", loaded)
