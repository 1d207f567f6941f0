"""The root of the tree, and what an operator or a key does not allow."""

from pathlib import Path
from typing import ClassVar


class ServerError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "server_error"


class InvalidSettingsError(ServerError):
    """The settings contradict each other or the machine they run on."""

    code = "invalid_settings"


class KeyFileError(ServerError):
    """The file of API keys cannot be read, trusted or changed."""

    code = "invalid_key_file"

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the file of API keys {path}: {reason}")


class AccessError(ServerError):
    """Base: the caller may not do this."""

    code = "access_denied"


class UnauthenticatedError(AccessError):
    """No key, or none that is valid; one answer for every reason tells nothing."""

    code = "unauthenticated"

    def __init__(self, *, was_presented: bool) -> None:
        self.was_presented = was_presented
        super().__init__(
            "this needs a valid API key; send it as 'Authorization: Bearer KEY' "
            "(the client and the command read NUNATAK_API_KEY)"
        )


class InsufficientScopeError(AccessError):
    """The key is valid, but not for this."""

    code = "insufficient_scope"

    def __init__(self, scope: str, *, spans_tasks: bool) -> None:
        self.scope = scope
        self.spans_tasks = spans_tasks
        tasks = " and with all tasks" if spans_tasks else ""
        super().__init__(
            f"this needs a key with the scope '{scope}'{tasks}; ask the operator of the server"
        )


class CrossSiteError(AccessError):
    """A browser sends it for a page of another site, whose reader did not ask for it."""

    code = "cross_site"

    def __init__(self) -> None:
        super().__init__(
            "a page of another site may not change or ask anything here; send the request from a "
            "program, or from a page of this server"
        )
