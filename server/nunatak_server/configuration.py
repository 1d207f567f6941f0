"""The configuration of a server process: settings, and the origin of each.

No other module reads the environment. `configure` merges the sources, the strongest first:

    flags  >  NUNATAK_* in the environment  >  a TOML file  >  defaults

`--config` or NUNATAK_CONFIG names the file. The file holds setting names without sections. An
unknown name is refused.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from nunatak_contract.errors import NunatakError, invalid_settings
from nunatak_contract.names import API_KEY_VARIABLE, CACHE_VARIABLE
from nunatak_contract.record import problems_of
from nunatak_server.settings import ServerSettings

PREFIX: Final = "NUNATAK_"
CONFIG_VARIABLE: Final = "NUNATAK_CONFIG"
HIDDEN: Final = "***"


class Origin(StrEnum):
    """The source of a value, the strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"
    FLEET = "of this process"
    """What a process among several was given in place of the value of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    settings: ServerSettings
    origins: Mapping[str, Origin]

    def shown(self) -> Iterator[tuple[str, object, Origin]]:
        """Yield name, value and origin of every setting, secrets hidden."""
        for name, origin in self.origins.items():
            yield name, shown_value(getattr(self.settings, name)), origin


def configure(given: Mapping[str, object], *, file: Path | None = None) -> Configuration:
    """Return the settings: `given` by flags, and for the rest the environment and the file."""
    named = os.environ.get(CONFIG_VARIABLE)
    path = file or (Path(named) if named else None)
    sources: dict[Origin, Mapping[str, object]] = {
        Origin.FLAG: given,
        Origin.ENVIRONMENT: EnvSettingsSource(ServerSettings)(),
        Origin.FILE: {} if path is None else _read(path),
    }
    origins = {name: _origin(name, sources) for name in ServerSettings.model_fields}
    values = {
        name: value for source in reversed(sources.values()) for name, value in source.items()
    }
    try:
        settings = ServerSettings.model_validate(values)
    except ValidationError as error:
        raise _as_known(error, sources, path) from None
    return Configuration(settings=settings, origins=origins)


def as_toml(configuration: Configuration) -> str:
    return "".join(
        f"{_assignment(name, value)}  # {origin}\n" for name, value, origin in configuration.shown()
    )


def shown_value(value: object) -> object:
    """Return a value for printing: user, password and query of a URL are hidden."""
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return HIDDEN
        case str() if "://" in value:
            # Replaced in the text, because a parser would lose a slash of `sqlite:////path`.
            named = re.sub(r"(?<=://).*@", f"{HIDDEN}@", value)
            return re.sub(r"\?.*", f"?{HIDDEN}", named)
        case _:
            return str(value)


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """Return variables with our prefix that no program of ours reads, such as typing errors."""
    known = {f"{PREFIX}{name}".lower() for name in ServerSettings.model_fields}
    # The other commands read these, and one file of variables may serve all commands.
    known |= {it.lower() for it in (CONFIG_VARIABLE, API_KEY_VARIABLE, CACHE_VARIABLE)}
    return sorted(
        name
        for name in environment
        if name.upper().startswith(PREFIX) and name.lower() not in known
    )


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as lines:
            read = tomllib.load(lines)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise invalid_settings(
            f"the configuration file {path} cannot be read ({reason}); it must be TOML "
            "with one setting a line, such as: port = 8080"
        ) from None
    # pydantic would read a name in any case of its letters.
    if unknown := sorted(read.keys() - ServerSettings.model_fields.keys()):
        raise invalid_settings(
            f"{unknown[0]}: there is no such setting; `nunatak serve --show-config` lists them all "
            f"(from: file, {path})"
        )
    # As in the environment, because Python reads a truth as the number 1 or 0.
    return {name: str(it).lower() if isinstance(it, bool) else it for name, it in read.items()}


def _origin(name: str, sources: Mapping[Origin, Mapping[str, object]]) -> Origin:
    return next((origin for origin, source in sources.items() if name in source), Origin.DEFAULT)


def _as_known(
    error: ValidationError, sources: Mapping[Origin, Mapping[str, object]], path: Path | None
) -> NunatakError:
    name, message = problems_of(error)[0]
    if not name:
        return invalid_settings(message)
    kind = error.errors(include_url=False)[0]["type"]
    if kind == "string_pattern_mismatch":
        message = f"expected this form: {ServerSettings.model_fields[name].description}"
    match _origin(name, sources):
        case Origin.ENVIRONMENT:
            place = f"environment, {PREFIX}{name.upper()}"
        case Origin.FILE:
            place = f"file, {path}"
        case other:
            place = other.value
    return invalid_settings(f"{name}: {message} (from: {place})")


def _assignment(name: str, value: object) -> str:
    match value:
        case None:
            return f"# {name} is not set"
        case bool():
            return f"{name} = {str(value).lower()}"
        case int() | float():
            return f"{name} = {value}"
        case _:
            return f"{name} = {_quoted(str(value))}"


def _quoted(text: str) -> str:
    escaped = "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'
