"""Tracing: the interface for the server, and the switch.

Tracing is off unless one of the standard `OTEL_*` variables names a collector. The spans are made
in `spans.py`, whose libraries are an extra: this module imports them only when tracing is on.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from nunatak_contract.errors import invalid_settings
from nunatak_server.engine.compute import BatchReport
from nunatak_server.telemetry.metrics import PredictionRecord

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Each of these variables turns tracing on."""
DISABLED: Final = "OTEL_SDK_DISABLED"


class RequestSpan(Protocol):
    @property
    def trace_id(self) -> str:
        """The 32 hexadecimal digits by which a collector finds the request."""
        ...

    def end(self, *, route: str, status: int) -> None: ...


class Tracing(Protocol):
    def begin(self, *, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """Open the span of a request, below the span of the caller (W3C traceparent) if any."""
        ...

    def observe_prediction(self, record: PredictionRecord) -> None: ...

    def observe_batch(self, report: BatchReport) -> None:
        """Make a span of a batch; called on the engine thread, before the rows are answered."""
        ...

    def close(self) -> None:
        """Send the spans that have not been sent; may take seconds."""
        ...


def find_tracing(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return tracing to the collector that the environment names, or None without one."""
    is_disabled = environment.get(DISABLED, "").strip().lower() == "true"
    if is_disabled or not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from nunatak_server.telemetry.spans import otlp_tracing  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise invalid_settings(
            f"{ENDPOINTS[0]} asks for traces, but the module {error.name!r} is missing; "
            "install 'nunatak[tracing]' or unset the variable"
        ) from error
    return otlp_tracing()
