"""The blocking client is generated from the asyncio client."""

import pytest

from policy.blocking_client import SOURCE, TARGET, blocking_client


def test_the_blocking_client_is_what_the_asyncio_client_makes() -> None:
    made = blocking_client(SOURCE.read_text("utf-8"))

    assert made == TARGET.read_text("utf-8"), "client.py is stale; run `make client`"


def test_what_no_rule_makes_blocking_is_refused() -> None:
    source = SOURCE.read_text("utf-8") + "\n\nLOCK = asyncio.Lock()\n"

    with pytest.raises(ValueError, match="asyncio"):
        blocking_client(source)
