"""Errors of artifacts that code catches; all others are a `NunatakError` with another code."""

from nunatak_contract.errors import NunatakError


class HubUnavailableError(NunatakError):
    """The hub gave or took nothing."""

    def __init__(self, repository: str, action: str, reason: str) -> None:
        self.action = action
        self.reason = reason
        super().__init__("hub_unavailable", repository=repository, action=action, reason=reason)
