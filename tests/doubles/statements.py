"""One cache of compiled statements for all registries of a process.

SQLAlchemy compiles each statement once for each engine, and tests open a registry, so an engine,
thousands of times: a third of the time of many tests. For each new registry it also looks for each
table, and makes the statement that creates the table.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Engine, MetaData, event, inspect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

_COMPILED: Final[LRUCache[object, object]] = LRUCache(2000)
_CREATIONS: Final[dict[tuple[MetaData, int], list[str]]] = {}
"""The statements that SQLite gets for all tables, by these and by their number."""


def share() -> None:
    """Let the engines of one kind of database, in this process and its forks, share statements."""
    # A statement is found again by its dialect, of which each engine has its own.
    identity = {"__eq__": _is_equal, "__hash__": _hash_of}
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        for name, method in identity.items():
            setattr(kind, name, method)
    event.listen(Engine, "engine_connect", _use)
    create = MetaData.create_all

    def create_at_once(metadata: MetaData, bind: Connection, **options: Any) -> None:  # noqa: ANN401 - options of SQLAlchemy
        is_empty = bind.dialect.name == "sqlite" and not inspect(bind).get_table_names()
        if options or not is_empty:
            create(metadata, bind, **options)
        elif (key := (metadata, len(metadata.tables))) in _CREATIONS:
            for statement in _CREATIONS[key]:
                bind.exec_driver_sql(statement)
        else:
            _CREATIONS[key] = _said_by(bind, partial(create, metadata, bind))

    setattr(MetaData, "create_all", create_at_once)  # noqa: B010 - a method of SQLAlchemy


def _said_by(bind: Connection, create: Callable[[], None]) -> list[str]:
    """Create tables; return the statements for it."""
    said = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    event.listen(bind, "before_cursor_execute", note)
    create()
    event.remove(bind, "before_cursor_execute", note)
    return [it for it in said if it.lstrip().startswith("CREATE")]


def _hash_of(dialect: Dialect) -> int:
    return hash(type(dialect))


def _is_equal(one: Dialect, other: object) -> bool:
    return type(one) is type(other) and vars(one).get("server_version_info") == vars(other).get(
        "server_version_info"
    )


def _use(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_COMPILED)
