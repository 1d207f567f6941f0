"""The one error that Nunatak raises on purpose: its code says why, `problems` has all codes.

A subclass exists only where code catches it, or where callers of the client may.
"""

from nunatak_contract.problems import REASONS


class NunatakError(Exception):
    """An error with a stable code; its message may go to a caller and to the log.

    Attributes:
        code: The name of the reason, such as `task_not_found`.
        fields: The values in the message, by name.
    """

    def __init__(self, code: str, **fields: object) -> None:
        self.code = code
        self.fields = fields
        super().__init__(REASONS[code].message.format_map(fields))


class InvalidNameError(NunatakError):
    """A task name, alias or reference that breaks the grammar of `names`."""

    def __init__(self, kind: str, value: str, expected: str) -> None:
        self.kind = kind
        self.expected = expected
        super().__init__("invalid_name", kind=kind, value=value[:80], expected=expected)
