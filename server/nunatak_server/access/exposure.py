"""Exposure: a server without keys must not be reachable from other machines by accident."""

from ipaddress import ip_address

from nunatak_server.errors import InvalidSettingsError
from nunatak_server.process.settings import ServerSettings


def check_exposure(settings: ServerSettings) -> None:
    """Refuse to be open to other machines, unless that is what was asked for.

    Raises:
        InvalidSettingsError: there are no keys, and the address is not this machine's own.
    """
    if (
        settings.api_keys_file is None
        and not settings.insecure_open
        and not is_loopback(settings.host)
    ):
        raise InvalidSettingsError(
            f"host must be a loopback address as long as there are no API keys, got "
            f"{settings.host!r}; make keys with `nunatak key create` and name their file in "
            "NUNATAK_API_KEYS_FILE, or say --insecure-open where something else keeps callers out"
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address; a name may mean anything but localhost."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
