"""Settings of the server process: every limit, with its unit in the name.

Read once from the environment (prefix `NUNATAK_`) or given by the caller, then frozen and handed
down as values; no other module reads the environment.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from nunatak_model import DEFAULT_BACKBONE
from nunatak_registry import InvalidNameError, TaskReference, default_location
from nunatak_server.batching.pace import FIXED_SHARE
from nunatak_server.batching.planner import BatchLimits
from nunatak_server.errors import InvalidSettingsError
from nunatak_server.observation.logs import LogFormat
from nunatak_server.residency.pins import references_in

Count = Annotated[int, Field(ge=1, le=2**31)]
Milliseconds = Annotated[int, Field(ge=1, le=600_000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]


class ServingDtype(StrEnum):
    """Number format of the forward pass; `auto` is float32 on a CPU and bfloat16 on CUDA."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class ServerSettings(BaseSettings):
    """Everything an operator may choose; each field is also `NUNATAK_<NAME>` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="NUNATAK_", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    registry: str = Field(
        default_factory=default_location,
        description="folder or database URL; a folder in the user's data directory if not set",
    )
    backbone: str = Field(
        default=DEFAULT_BACKBONE,
        description="`minilm` (built in), a local folder, or a hub id; `+int8` behind it quantizes",
    )
    backbone_layers: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="lowest layers of the backbone to hold; all if not set. Tasks that own all "
        "layers above them are served, others and embeddings refused",
    )
    host: str = Field(
        default="127.0.0.1",
        description="address to listen at; another one than loopback wants API keys",
    )
    port: Annotated[
        int, Field(ge=0, le=65_535, description="port to listen at; 0 = any free one")
    ] = 8080
    api_keys_file: Path | None = Field(
        default=None,
        description="file of API keys, made by `nunatak key create`; anyone may ask if not set",
    )
    insecure_open: bool = Field(
        default=False, description="serve other machines without keys: something else guards"
    )
    device: str = Field(default="auto", description="`auto`, `cpu`, `cuda` or `cuda:1`")
    dtype: ServingDtype = Field(
        default=ServingDtype.AUTO,
        description="number format; `auto` is float32 on a processor and bfloat16 on CUDA",
    )
    cuda_graphs: bool = Field(
        default=False,
        description="replay recorded trunk stages instead of launching them, on CUDA only; measure "
        "with `make gpu` what it gains on the device at hand",
    )

    max_body_bytes: Count = Field(default=1024 * 1024, description="body of one request")
    max_inputs: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=64, description="inputs of one request, documents of rankings counted each"
    )
    max_tasks_per_request: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=64, description="tasks that one request may ask"
    )
    max_text_chars: Count = Field(
        default=32_768, description="characters of one text, checked before tokenization"
    )

    max_batch_tokens: Count = Field(
        default=4096,
        description="tokens of one forward pass: of its distinct texts, and of their rows again; "
        "at least twice the longest text of the backbone",
    )
    max_batch_rows: Count = Field(
        default=64, description="rows, that is (text, task) pairs, of one forward pass"
    )
    batch_overhead: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=FIXED_SHARE,
        description="share of the throughput of the longest batches that is given up for shorter "
        "ones. Less gains throughput, more shortens waits",
    )
    trunk_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = Field(
        default=256 * 1024**2,
        description="bytes for trunk states of texts asked before, on the device; 0 = none",
    )
    task_memory_bytes: Annotated[int, Field(ge=1, le=2**50)] | None = Field(
        default=None,
        description="bytes for task versions in memory, on the device; half of what is free there "
        "at the start if not set",
    )
    host_memory_bytes: Annotated[int, Field(ge=0, le=2**50)] | None = Field(
        default=None,
        description="bytes for stored task versions in main memory, beside a CUDA device; half of "
        "what is free there if not set, and 0 on a processor",
    )
    pins: str = Field(
        default="",
        description="task references, separated by commas: loaded before the server is ready, and "
        "kept in memory; what an alias means is looked up once",
    )
    max_queued_requests: Count = Field(
        default=1024, description="requests that are not answered yet; further ones get 429"
    )
    max_queued_tokens: Count = Field(
        default=262_144,
        description="tokens of their rows, through all layers; further ones get 429",
    )
    max_held_bytes: Count = Field(
        default=64 * 1024**2, description="bytes of their bodies; further ones get 429"
    )
    default_deadline_ms: Milliseconds = Field(
        default=30_000, description="deadline of requests without `x-deadline-ms`"
    )

    registry_poll_ms: Milliseconds = Field(
        default=50,
        description="how often the registry is asked for changes that other processes made",
    )
    shadow_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.1, description="how far apart values of regression count as agreeing"
    )
    tokenizer_threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="threads that split long texts into tokens"
    )
    load_threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, description="threads that load task versions, one each at a time"
    )
    compute_threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0, description="threads of one forward pass on a processor; 0 = torch's own choice"
    )

    keep_alive_s: Seconds = Field(
        default=75, description="how long idle connections are kept; set it above the proxy's"
    )
    grace_s: Seconds = Field(
        default=30, description="at shutdown, time for requests in flight to be answered"
    )
    stall_s: Seconds = Field(
        default=60,
        description="/readyz says 503 once requests have waited for so long and no batch has ended",
    )
    drain_delay_s: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=0,
        description="at shutdown, requests are taken for this long while /readyz says 503",
    )
    receive_timeout_s: Seconds = Field(
        default=10, description="time for a request to arrive whole, and for its answer to be taken"
    )

    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="lines for people (`text`) or for programs (`json`)"
    )
    access_log: bool = Field(default=True, description="write one line for each request")

    @field_validator("pins")
    @classmethod
    def _check_pins(cls, pins: str) -> str:
        try:
            references_in(pins)
        except InvalidNameError as error:
            raise ValueError(str(error)) from error
        return pins

    def pinned(self) -> tuple[TaskReference, ...]:
        """Return what `pins` names."""
        return references_in(self.pins)

    def batch_limits(self, *, longest_row_tokens: int) -> BatchLimits:
        """Return the limits of one batch, once it is certain that every row can be served.

        Raises:
            InvalidSettingsError: a row of `longest_row_tokens`, counted as trunk and as branch,
                would not fit an empty batch and so would block the queue for ever.
        """
        needed = 2 * longest_row_tokens
        if self.max_batch_tokens < needed:
            raise InvalidSettingsError(
                f"max_batch_tokens must be at least {needed} (trunk and branch of one text of "
                f"{longest_row_tokens} tokens), got {self.max_batch_tokens}; "
                "raise NUNATAK_MAX_BATCH_TOKENS"
            )
        return BatchLimits(max_tokens=self.max_batch_tokens, max_rows=self.max_batch_rows)
