"""The text of a streamed answer that may be shown. The proxy and the gateways share this form."""

from collections.abc import AsyncGenerator, AsyncIterable

from nunatak_client import AsyncClient, NunatakClientError
from nunatak_contract.enums import VerdictAction

NUNATAK, POLICY = "http://127.0.0.1:8080", "answers"
TIMEOUT_S = 5.0
"""For the verdict, after the last part of the answer."""
BLOCKED = "[The answer was blocked.]"


class BlockedError(Exception):
    """Nothing more of the answer may be shown; the message may be shown."""


async def released(chunks: AsyncIterable[str]) -> AsyncGenerator[str]:
    """Yield the text that the policy releases, with its masks.

    Raises:
        BlockedError: the policy blocks, or there is no final verdict, for any reason.
    """
    try:
        async with AsyncClient(NUNATAK, timeout_s=TIMEOUT_S) as guard:
            async for event in guard.judge_stream(POLICY, chunks):
                if event.text:
                    yield event.text
                if event.final and event.verdict and event.verdict.action != VerdictAction.BLOCK:
                    return
                if event.final and event.verdict:
                    raise BlockedError(event.verdict.message or BLOCKED)
    except NunatakClientError as error:
        raise BlockedError(BLOCKED) from error
    raise BlockedError(BLOCKED)
