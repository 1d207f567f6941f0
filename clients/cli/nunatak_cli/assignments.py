"""Options that give values to names: `--set epochs=3`, `--data tone=tone.jsonl`."""

from collections.abc import Iterable, Mapping

from nunatak_cli.errors import InvalidOptionError


def assignments(
    option: str, given: Iterable[str] | None, *, may_be_empty: bool = False
) -> dict[str, str]:
    """Return the value of each name.

    Raises:
        InvalidOptionError: a text is not NAME=VALUE, or a name is given twice.
    """
    values = dict[str, str]()
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and (value or may_be_empty)):
            raise InvalidOptionError(f"{option} expects NAME=VALUE, got {text!r}")
        if name in values:
            raise InvalidOptionError(f"{option} names {name!r} twice")
        values[name] = value
    return values


def settings_given(given: Iterable[str] | None, **options: str | None) -> dict[str, str]:
    """Return the settings of `--set` and of the options that have one of their own.

    Raises:
        InvalidOptionError: a text is not NAME=VALUE, or a name is given twice.
    """
    own = {name: value for name, value in options.items() if value is not None}
    values = assignments("--set", given)
    for name in own.keys() & values.keys():
        option = f"--{name.replace('_', '-')}"
        raise InvalidOptionError(f"{option} and --set {name} say the same; give one of them")
    return {**own, **values}


def check_names(option: str, named: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Return if all names of an option are known ones.

    Raises:
        InvalidOptionError: one is not.
    """
    unknown = sorted(named.keys() - known.keys())
    if unknown:
        raise InvalidOptionError(
            f"{option} expects one of {', '.join(known)} before =, got {unknown[0]!r}"
        )
