"""Admission: how much may be queued at once, in requests and in tokens.

A request takes one place at once and the tokens of its rows as soon as they are counted; both are
given back when it is answered. Refusing early keeps the wait of what was accepted bounded.
"""

from collections.abc import Generator
from contextlib import contextmanager

from nunatak_server.errors import OverloadedError

RETRY_AFTER_S = 1


class Permit:
    """One admitted request; it belongs to the event loop thread."""

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.num_tokens = 0

    def take_tokens(self, num_tokens: int) -> None:
        """Count the tokens of the request's rows.

        Raises:
            OverloadedError: they do not fit beside what others hold.
        """
        self._admission.take_tokens(num_tokens)
        self.num_tokens += num_tokens


class Admission:
    """Counts what is admitted; not thread-safe, it belongs to the event loop thread."""

    def __init__(self, *, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.num_requests = 0
        self.num_tokens = 0

    @contextmanager
    def admit(self) -> Generator[Permit]:
        """Hold a place for one request, and the tokens it takes, while the block runs.

        Raises:
            OverloadedError: every place is taken.
        """
        if self.num_requests >= self._max_requests:
            raise OverloadedError("requests", self._max_requests, retry_after_s=RETRY_AFTER_S)
        self.num_requests += 1
        permit = Permit(self)
        try:
            yield permit
        finally:
            self.num_requests -= 1
            self.num_tokens -= permit.num_tokens

    def take_tokens(self, num_tokens: int) -> None:
        """Count tokens, or raise `OverloadedError` if others hold too many.

        A request that finds nothing else queued always passes: refusing the only one would tell
        its caller to retry for ever.
        """
        if self.num_tokens and self.num_tokens + num_tokens > self._max_tokens:
            raise OverloadedError("tokens", self._max_tokens, retry_after_s=RETRY_AFTER_S)
        self.num_tokens += num_tokens
