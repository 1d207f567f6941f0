"""Errors of the contract.

ContractError
+-- InvalidNameError    a task name, alias or reference is malformed
"""

from typing import ClassVar


class ContractError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "contract_error"


class InvalidNameError(ContractError):
    """A task name, alias or reference that breaks the grammar of `names`."""

    code = "invalid_name"

    def __init__(self, kind: str, value: str, expected: str) -> None:
        self.kind = kind
        self.value = value
        self.expected = expected
        super().__init__(f"{kind} must be {expected}, got {value[:80]!r}")
