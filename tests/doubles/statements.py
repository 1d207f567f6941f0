"""One cache of compiled statements for all registries of a process.

SQLAlchemy compiles each statement once for each engine, and tests open a registry, so an engine,
thousands of times: a third of the time of many tests.
"""

from typing import Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

_COMPILED: Final[LRUCache[object, object]] = LRUCache(2000)


def share() -> None:
    """Let the engines of one kind of database, in this process and its forks, share statements."""
    # A statement is found again by its dialect, of which each engine has its own.
    identity = {"__eq__": _is_equal, "__hash__": _hash_of}
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        for name, method in identity.items():
            setattr(kind, name, method)
    event.listen(Engine, "engine_connect", _use)


def _hash_of(dialect: Dialect) -> int:
    return hash(type(dialect))


def _is_equal(one: Dialect, other: object) -> bool:
    return type(one) is type(other) and vars(one).get("server_version_info") == vars(other).get(
        "server_version_info"
    )


def _use(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_COMPILED)
