"""Every error names a listed reason with the values of its message, and every reason is in use."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import house

from nunatak_contract.problems import REASONS

Raised = tuple[str, str, frozenset[str]]
"""Where an error is made, its code, and the names of its values."""

PUBLIC_TO_CALLERS = {"nunatak_client", "nunatak_contract"}
"""Packages whose errors callers catch."""


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse each file of the product."""
    files = [it for package in house.product_files().values() for it in package]
    return {file: house.tree_of(file) for file in files}


def test_only_one_place_puts_the_errors_of_pydantic_into_words() -> None:
    raw = re.compile(r"""Value error|\[["']msg["']\]|\.errors\(.*\["msg"\]""")
    read = {file.name for file in trees() if raw.search(file.read_text())}

    assert read == {"record.py"}


def test_errors_of_training_name_no_option_without_its_command() -> None:
    """Python raises them too, where a command's option means nothing."""
    texts = {
        text
        for file in house.product_files()["nunatak_training"]
        for node in house.nodes_of(file)
        for text in (_constants(node) if isinstance(node, ast.Constant) else [])
    }
    messages = texts | {REASONS[it].message for it in texts & REASONS.keys()}
    bare = {it: re.sub("`[^`]*`", "", it) for it in messages}

    assert {"already_training", "cache_unusable"} <= texts
    assert [it for it in messages if re.search(r"(?<!\S)\(?--[a-z]", bare[it])] == []


def made_errors() -> Iterator[Raised]:
    for file in trees():
        for node in house.nodes_of(file):
            if isinstance(node, ast.Call) and node.args:
                made = ast.unparse(node.func)
                is_second = made in {"NunatakError.__init__", "partial", "content_of"}
                first = node.args[-1] if is_second else node.args[0]
                if _makes_error(node, first):
                    place = f"{file.name}:{node.lineno}"
                    named = frozenset(it.arg for it in node.keywords if it.arg is not None)
                    if made == "content_of":
                        named = frozenset({"path", "place", "problem"})
                    for code in _constants(first):
                        yield place, code, named


@cache
def raised() -> tuple[Raised, ...]:
    """Return what `made_errors` yields, which takes a second."""
    return tuple(made_errors())


def _makes_error(call: ast.Call, first: ast.expr) -> bool:
    name = ast.unparse(call.func)
    if name == "content_of":
        return True
    if name == "partial" and ast.unparse(call.args[0]) == "NunatakError":
        return True
    is_constructor = name in {"NunatakError", "NunatakError.__init__", "super().__init__"}
    return is_constructor and any(
        code in REASONS or name == "NunatakError" for code in _constants(first)
    )


def _constants(value: ast.expr) -> list[str]:
    match value:
        case ast.Constant(value=str() as code):
            return [code]
        case ast.IfExp(body=body, orelse=other):
            return [*_constants(body), *_constants(other)]
        case _:
            return []


def fields_of(code: str) -> set[str]:
    """Return the names of the values in the message of a reason."""
    return {name for _, name, _, _ in Formatter().parse(REASONS[code].message) if name}


def caught_names() -> set[str]:
    """Return the names that some `except`, `isinstance`, `suppress` or `case` of the code reads."""
    found = set[str]()
    for file, tree in trees().items():
        values = {
            ast.unparse(it.target): it.value
            for it in tree.body
            if isinstance(it, ast.AnnAssign) and it.value is not None
        } | {ast.unparse(it.targets[0]): it.value for it in tree.body if isinstance(it, ast.Assign)}
        for node in house.nodes_of(file):
            match node:
                case ast.ExceptHandler(type=ast.expr() as read):
                    pass
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, read]):
                    pass
                case ast.MatchClass(cls=read):
                    pass
                case _:
                    continue
            read = values.get(ast.unparse(read), read)
            found |= {it.id for it in ast.walk(read) if isinstance(it, ast.Name)}
    return found


def test_every_error_names_a_reason_and_the_values_of_its_message() -> None:
    wrong = [
        (place, code)
        for place, code, named in raised()
        if code not in REASONS or not fields_of(code) <= named
    ]

    assert wrong == []


def test_every_reason_is_in_use() -> None:
    assert {code for _, code, _ in raised()} == REASONS.keys()


def test_an_error_has_a_class_of_its_own_only_where_the_code_catches_it() -> None:
    bases = {
        node.name: ast.unparse(node.bases[0])
        for file, tree in trees().items()
        if not PUBLIC_TO_CALLERS.intersection(file.parts)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases
    }
    caught = caught_names()
    direct = [name for name, base in bases.items() if base == "NunatakError"]

    assert direct
    assert [name for name in direct if name not in caught] == []
