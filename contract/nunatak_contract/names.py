"""Names of tasks and aliases, and the grammar of a task reference.

    reference = name | name "@" alias | name "/" version

Names never become paths: the store addresses files by digest alone.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import StringConstraints

from nunatak_contract.errors import InvalidNameError

NAME_PATTERN = r"^[a-z0-9](?:\.?[a-z0-9_-])*$"
MAX_NAME_LENGTH = 64
MAX_READER_LENGTH = 200
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
DEFAULT_ALIAS = "prod"
DEFAULT_BACKBONE = "minilm"
"""The name of the backbone that is built in."""
MAX_VERSION = 2**31 - 1
API_KEY_VARIABLE = "NUNATAK_API_KEY"
"""The variable of the key that clients send."""
CACHE_VARIABLE = "NUNATAK_CACHE"
"""The variable of the folder where training keeps trunk states and checkpoints."""

TaskName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]

_NAME = re.compile(NAME_PATTERN.removesuffix("$"))
NAME_FORM = (
    f"1 to {MAX_NAME_LENGTH} lower-case letters, digits, '_', '-' or single inner '.', "
    "starting with a letter or digit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReference:
    """A reference to a task: a name, with an alias, a version or neither."""

    task: str
    alias: str | None = None
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> "TaskReference":
        """Read `name`, `name@alias` or `name/3`.

        Raises:
            InvalidNameError: the text does not follow the grammar, or is no text.
        """
        if not isinstance(text, str):
            raise InvalidNameError("task", repr(text), "one name, as a string")
        name, at, alias = text.partition("@")
        if at:
            return cls(task=check_task_name(name), alias=check_alias_name(alias))
        name, slash, version = text.partition("/")
        if slash:
            return cls(task=check_task_name(name), version=check_version(version))
        return cls(task=check_task_name(name))

    @staticmethod
    def task_in(text: str) -> str:
        """Return the part of a reference that names the task, also of an invalid reference."""
        return text.partition("@")[0].partition("/")[0]

    def check(self) -> None:
        """Refuse names that break the grammar. References from `parse` always pass.

        Raises:
            InvalidNameError: the task or the alias is not a valid name.
        """
        check_task_name(self.task)
        if self.alias is not None:
            check_alias_name(self.alias)

    def __str__(self) -> str:
        if self.alias is not None:
            return f"{self.task}@{self.alias}"
        if self.version is not None:
            return f"{self.task}/{self.version}"
        return self.task


def check_task_name(value: str) -> str:
    """Return `value` if it is a task name, else raise `InvalidNameError`."""
    return _check("task name", value)


def check_alias_name(value: str) -> str:
    """Return `value` if it is an alias, else raise `InvalidNameError`."""
    return _check("alias", value)


def check_document_name(kind: str, value: str) -> str:
    """Return `value` if it can name a document of a kind, else raise `InvalidNameError`."""
    return _check(f"{kind} name", value)


def check_reader_name(value: str) -> str:
    """Return `value` if it can name a reader, else raise `InvalidNameError`."""
    if not (1 <= len(value) <= MAX_READER_LENGTH and value.isascii() and value.isprintable()):
        raise InvalidNameError(
            "reader", value, f"1 to {MAX_READER_LENGTH} printable ASCII characters"
        )
    return value


def check_version(value: str) -> int:
    """Return the version number in `value`, else raise `InvalidNameError`."""
    is_number = value.isascii() and value.isdecimal() and value[0] != "0" and len(value) <= 10
    if not is_number or int(value) > MAX_VERSION:
        raise InvalidNameError("version", value, f"an integer from 1 to {MAX_VERSION}")
    return int(value)


def _check(kind: str, value: str) -> str:
    if len(value) > MAX_NAME_LENGTH or _NAME.fullmatch(value) is None:
        raise InvalidNameError(kind, value, NAME_FORM)
    return value
