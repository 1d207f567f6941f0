"""Settings by name: the fields of a pydantic model, and values by the names of fields.

The name of a field in a nested model has a dot: `tapt.epochs`.
"""

import tomllib
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, JsonValue

from nunatak_training.errors import InvalidRecipeError

Schema = Mapping[str, Any]

NOTHING = "null"
LARGE = 2**53
"""Ends of ranges from here on are not shown."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    values: str
    """Names, or the ends of a range."""
    default: str
    description: str
    is_list: bool = False
    is_text: bool = False

    def read(self, value: JsonValue) -> JsonValue:
        """In the form of the model. A text may spell a list or null."""
        if not isinstance(value, str) or self.is_text:
            return value
        if value == NOTHING:
            return None
        return [part.strip() for part in value.split(",")] if self.is_list else value


def settings_of(
    model: type[BaseModel], defaults: Mapping[str, JsonValue] | None = None
) -> dict[str, Setting]:
    """By name; `defaults` override the fields' defaults."""
    schema = model.model_json_schema()
    shared = schema.get("$defs", {})
    found = _settings_in(schema["properties"], shared, prefix="", defaults=defaults or {})
    return {setting.name: setting for setting in found}


def flattened(named: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    flat: dict[str, JsonValue] = {}
    for name, value in named.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": it for inner, it in flattened(value).items()}
        else:
            # As text, because Python reads a truth as the number 1 or 0.
            flat[name] = str(value).lower() if isinstance(value, bool) else value
    return flat


def overlaid(*layers: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Merge settings by names with dots; later layers override earlier layers.

    A layer with a whole group, or with the `name` in a group, drops the group's earlier settings.
    """
    flat: dict[str, JsonValue] = {}
    for layer in layers:
        own = flattened(layer)
        groups = {name for name, value in layer.items() if value is None or isinstance(value, dict)}
        groups |= {name.removesuffix(".name") for name in own if name.endswith(".name")}
        flat = {name: it for name, it in flat.items() if name.partition(".")[0] not in groups}
        flat |= own
    return flat


def nested(named: Mapping[str, JsonValue], known: Mapping[str, Setting]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for name, value in flattened(named).items():
        group, _, inner = name.partition(".")
        is_group = not inner and any(it.startswith(f"{name}.") for it in known)
        if is_group and value in {None, NOTHING}:
            found[name] = None
            continue
        check_name(name, known)
        if not inner:
            found[name] = known[name].read(value)
            continue
        members = found.get(group)
        of_group = members if isinstance(members, dict) else {}
        found[group] = {**of_group, inner: known[name].read(value)}
    return found


def check_name(name: str, known: Collection[str]) -> None:
    if name not in known:
        within = [it for it in known if it.startswith(f"{name}.")]
        nearest = within or get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
        raise InvalidRecipeError(f"there is no setting {name!r}{hint}. All: {', '.join(known)}")


def read_mapping(path: Path, texts: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings in a YAML or TOML file; `texts` are values by name, in YAML.

    A file that cannot be read is a `ValueError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix.lower():
            case ".toml":
                loaded: object = tomllib.loads(text)
            case ".yaml" | ".yml":
                loaded = read_yaml(text)
            case end:
                raise ValueError(f"must end in .yaml, .yml or .toml (policy: .json), not {end!r}")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"cannot be parsed: {error}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"expected settings by name, got {loaded!r:.40}")  # noqa: TRY004
    named = cast("dict[str, object]", loaded)
    return with_values(named, {name: read_yaml(it) for name, it in (texts or {}).items()})


def with_values(settings: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """Set the groups first, then their settings."""
    found = dict(settings)
    for name, value in sorted(values.items(), key=lambda it: it[0].count(".")):
        group, _, inner = name.partition(".")
        if not inner:
            found[name] = value
            continue
        members = found.get(group, {})
        if not isinstance(members, Mapping):
            raise ValueError(f"{group} has no settings with names")  # noqa: TRY004
        named = cast("Mapping[str, object]", members)
        first = inner.partition(".")[0]
        is_group = isinstance(named.get(first), Mapping)
        found[group] = with_values(named, {inner: value}) if is_group else {**named, inner: value}
    return found


def read_yaml(text: str) -> object:
    """A name that occurs twice is a `ValueError`."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(f"cannot be parsed: {' '.join(str(error).split())}") from error


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that YAML would silently change: one that occurs twice, or `yes` as true."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - as inherited
    ) -> dict[Hashable, object]:
        keys = [cast("object", key.value) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                problem=f"{twice!r} stands twice", problem_mark=node.start_mark
            )
        plain = (key for key, _ in node.value if key.tag == "tag:yaml.org,2002:bool")
        for key in plain:
            raise yaml.constructor.ConstructorError(
                problem=f"YAML reads the name {key.value} as true or false: put `{key.value}` in "
                "quotation marks",
                problem_mark=key.start_mark,
            )
        return cast("dict[Hashable, object]", super().construct_mapping(node, deep=deep))


def _settings_in(
    properties: Schema, shared: Schema, *, prefix: str, defaults: Mapping[str, JsonValue]
) -> Iterator[Setting]:
    for name, described in properties.items():
        variants = _variants(described, shared)
        if "properties" in variants[0]:
            members, inner = variants[0]["properties"], described.get("default") or {}
            yield from _settings_in(members, shared, prefix=f"{prefix}{name}.", defaults=inner)
            continue
        default = defaults.get(name, described.get("default", ...))
        is_text = any(it.get("type") == "string" and not _names(it) for it in variants)
        yield Setting(
            name=f"{prefix}{name}",
            values=("|" if all(map(_names, variants)) else " or ").join(
                dict.fromkeys(map(_values, variants))
            ),
            default="not set" if is_text and default is None else _default_text(default),
            description=described.get("description", ""),
            is_list=any(each.get("type") == "array" for each in variants),
            is_text=is_text,
        )


def _variants(described: Schema, shared: Schema) -> list[Schema]:
    if "$ref" in described:
        return _variants(shared[described["$ref"].rpartition("/")[2]], shared)
    for union in ("anyOf", "oneOf"):
        if union in described:
            return [it for each in described[union] for it in _variants(each, shared)]
    if "items" in described:
        return [{**described, "items": _variants(described["items"], shared)[0]}]
    return [] if described.get("type") == "null" else [described]


def _names(schema: Schema) -> list[str]:
    return schema.get("enum", [schema["const"]] if "const" in schema else [])


def _values(schema: Schema) -> str:
    match schema:
        case {"enum": _} | {"const": _}:
            return "|".join(_names(schema))
        case {"type": "array", "items": {"enum": names}}:
            return f"of {', '.join(cast('list[str]', names))}, with commas between"
        case {"type": "boolean"}:
            return "true|false"
        case {"type": "integer" | "number" as kind}:
            return _range(schema, "a whole number" if kind == "integer" else "a number")
        case _:
            return "a text"


def _range(schema: Schema, kind: str) -> str:
    ends = {
        "minimum": "from {:,}",
        "exclusiveMinimum": "above {:,}",
        "maximum": "to {:,}",
        "exclusiveMaximum": "below {:,}",
    }
    said = [
        text.format(schema[end])
        for end, text in ends.items()
        if end in schema and schema[end] < LARGE
    ]
    return f"{kind} {' '.join(said)}".strip()


def _default_text(default: object) -> str:
    match default:
        case None:
            return NOTHING
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case list():
            return ",".join(map(str, cast("list[object]", default)))
        case _:
            return "" if default is ... else str(default)
