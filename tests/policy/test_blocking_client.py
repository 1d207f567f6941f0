"""The blocking client is made from the asyncio client by the build."""

import inspect

import pytest

from nunatak_client import AsyncClient, Client
from release.blocking_client import SOURCE, TARGET, blocking_client


def test_the_blocking_client_has_the_methods_of_the_asyncio_client() -> None:
    def named(client: type) -> dict[str, str]:
        methods = inspect.getmembers(client, inspect.isfunction)
        return {
            name: str(inspect.signature(method).replace(return_annotation=None))
            for name, method in methods
            if not name.startswith("_")
        }

    own, other = named(Client), named(AsyncClient)

    assert own.pop("close") == other.pop("aclose")
    assert own.pop("judge_stream") == other.pop("judge_stream").replace("Async", "")
    assert own == other


def test_the_client_that_is_imported_is_made_from_the_present_source() -> None:
    assert TARGET.read_text("utf-8") == blocking_client(SOURCE.read_text("utf-8"))


def test_what_no_rule_makes_blocking_is_refused() -> None:
    source = SOURCE.read_text("utf-8") + "\n\nLOCK = asyncio.Lock()\n"

    with pytest.raises(ValueError, match="asyncio"):
        blocking_client(source)
