"""Tracing: where the time of a request went, told to a collector; off unless one is named.

The standard `OTEL_*` variables say where to and how much. The libraries for it are an extra, and
are imported only when they are needed.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from nunatak_server.engine.outcomes import BatchReport
from nunatak_server.errors import InvalidSettingsError
from nunatak_server.telemetry.records import PredictionRecord

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Any of these turns tracing on."""
DISABLED: Final = "OTEL_SDK_DISABLED"


class RequestSpan(Protocol):
    """The time of one request, from its head to its answer."""

    @property
    def trace_id(self) -> str:
        """What finds the request at the collector: 32 hexadecimal digits."""
        ...

    def end(self, *, route: str, status: int) -> None:
        """Close it, in the context where it was begun."""
        ...


class Tracing(Protocol):
    """Makes spans of what is observed."""

    def begin(self, *, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """Open the span of a request, below the caller's own if it names one (W3C traceparent)."""
        ...

    def observe_prediction(self, record: PredictionRecord) -> None:
        """Make spans of the stages of the request in whose context this is called."""
        ...

    def observe_batch(self, report: BatchReport) -> None:
        """Make a span of a batch; called on the engine thread, before its rows are answered."""
        ...

    def close(self) -> None:
        """Send what has not been sent; may take seconds."""
        ...


def find_tracing(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return tracing to the collector that the environment names, or None if it names none.

    Raises:
        InvalidSettingsError: one is named, but the libraries are not installed.
    """
    is_disabled = environment.get(DISABLED, "").strip().lower() == "true"
    if is_disabled or not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from nunatak_server.telemetry.spans import otlp_tracing  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise InvalidSettingsError(
            f"{ENDPOINTS[0]} asks for traces, but the module {error.name!r} is missing; "
            "install 'nunatak[tracing]' or unset the variable"
        ) from error
    return otlp_tracing()
