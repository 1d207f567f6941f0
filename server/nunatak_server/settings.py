"""Settings of the server process, with units in their names: `ServerSettings`, frozen."""

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from nunatak_contract.enums import Kernels, LogFormat, ServingDtype, UnknownQuestions
from nunatak_contract.errors import InvalidNameError, invalid_settings
from nunatak_contract.names import DEFAULT_BACKBONE, TaskReference
from nunatak_contract.upstreams import PROTOCOLS
from nunatak_server.scheduler.batch_time import FIXED_SHARE, BatchLimits
from nunatak_server.scheduler.turns import Limits, Quota

Count = Annotated[int, Field(ge=1, le=2**31)]
Quantity = Annotated[int, Field(ge=1, le=2**53)] | None
Milliseconds = Annotated[int, Field(ge=1, le=600_000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]


_SIGNATURE: Final = "(?:[RPE]S(?:256|384|512)|EdDSA)"
"""Signatures by a private key. Who can check one cannot make one, unlike with HS256."""
_SAFE: Final = r"https://[A-Za-z0-9.-]+|http://(?:localhost|127\.0\.0\.1)"
SafeUrl = Annotated[str, Field(pattern=rf"^(?:(?:{_SAFE})(?::\d{{1,5}})?(?:/\S*)?)?$")]
"""A URL whose answer nobody on the way can change; empty if not set."""
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?"
_UPSTREAM: Final = rf"^(?:https?://{_HOST}(?:/[^\s?#\x00-\x1f\x7f]*)?(?:{'|'.join(PROTOCOLS)}))?$"
_NAME: Final = re.compile(r"[\w.-]*")
_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?:[a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_CUDA_DEFAULTS: Final[Mapping[str, object]] = {"max_batch_rows": 256, "trunk_cache_bytes": 0}
"""Defaults that are others on CUDA: 64 short texts take longer to launch than to compute, and each
state of the trunk cache is a launch of its own. No device has measured them yet."""


def _default_registry() -> str:
    # The registry imports a database library, which the help of `nunatak serve` does not need.
    from nunatak_registry import default_location  # noqa: PLC0415

    return default_location()


class ServerSettings(BaseSettings):
    """All settings of an operator; each field is also `NUNATAK_<NAME>` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="NUNATAK_",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    registry: str = Field(
        default_factory=_default_registry,
        description="folder or database URL; a folder in the user's data directory if not set",
    )
    backbone: str = Field(
        default=DEFAULT_BACKBONE,
        description=(
            "`minilm` (built in), an added backbone, a local folder, or a hub id; suffix `+int8` "
            "quantizes"
        ),
    )
    other_backbones: str = Field(
        default="",
        description="further backbones of this server, separated by commas: each task runs on its "
        "own. `nunatak serve --backbone A --backbone B` sets both settings",
    )
    backbone_layers: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="number of lowest layers to keep in memory; all if not set. The server "
        "refuses embeddings, and tasks that need a higher layer of the backbone",
    )
    host: str = Field(
        default="127.0.0.1",
        description="address to listen at; any address other than loopback needs API keys",
    )
    port: Annotated[
        int, Field(ge=0, le=65_535, description="port to listen at; 0 = any free one")
    ] = 8080
    processes: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1,
        description="processes that serve the port from one copy of the backbone in memory; CPU "
        "only. Process i also listens at `port` + 1 + i, for metrics. Cores, task memory, and "
        "trunk cache are divided among the processes where they are not set; what is set holds for "
        "each process",
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="file of API keys, made by `nunatak key create`; without it no key is needed",
    )
    insecure_open: bool = Field(
        default=False, description="serve other machines without keys; keep callers out elsewhere"
    )
    cors_origins: str = Field(
        default="",
        description=(
            "origins of other sites whose pages may call this server from a browser, separated by "
            "commas, such as `https://app.example`"
        ),
    )
    audit_log: Path | None = Field(
        default=None,
        description="file to which a JSON line is appended before and after each act of an "
        "operator, such as a promotion; if the file cannot be written, the act is refused",
    )
    oidc_issuer: SafeUrl = Field(
        default="",
        description="URL of the issuer (`iss`) whose tokens count beside API keys: with https, or "
        "with http at a loopback address",
    )
    oidc_audience: str = Field(
        default="nunatak", description="name of this server, which a token must have in `aud`"
    )
    oidc_jwks_url: SafeUrl = Field(
        default="",
        description="URL of the issuer's keys, with https or at a loopback address; if not set, "
        "the discovery document of the issuer names it",
    )
    oidc_algorithms: Annotated[str, Field(pattern=f"^{_SIGNATURE}(?:,{_SIGNATURE})*$")] = Field(
        default="RS256,ES256",
        description="signatures, separated by commas: `RS`, `PS` or `ES` with 256, 384 or 512, and "
        "`EdDSA`",
    )
    oidc_scopes_claim: str = Field(
        default="scope",
        description="claim with the scopes `nunatak:predict`, `nunatak:read` and `nunatak:admin`. "
        "Dots lead into objects, as in `realm_access.roles`",
    )
    oidc_tenant_claim: str = Field(default="sub", description="claim with the name of the caller")
    oidc_tasks_claim: str = Field(
        default="nunatak_tasks",
        description="claim with the tasks that exist for the caller, as in `tone intent*`; `*` is "
        "every task. Tokens without it are refused",
    )
    max_requests_per_minute: Quantity = Field(
        default=None,
        description="requests of one caller in a minute, in each process, if its key has no own "
        "quota. Requests of scope `admin` do not count",
    )
    max_requests_per_day: Quantity = Field(default=None, description="the same in a day of UTC")
    max_tokens_per_minute: Quantity = Field(
        default=None,
        description="tokens of one caller in a minute, in each process, counted as for "
        "`max_queued_tokens`",
    )
    max_tokens_per_day: Quantity = Field(default=None, description="the same in a day of UTC")
    device: str = Field(default="auto", description="`auto`, `cpu`, `cuda` or `cuda:1`")
    dtype: ServingDtype = Field(
        default=ServingDtype.AUTO,
        description="number format; `auto` is bfloat16 on CUDA devices from compute capability "
        "8.0 on, and float32 elsewhere",
    )
    kernels: Kernels = Field(
        default=Kernels.AUTO,
        description="`auto`: the fast kernels that agree with torch's own operations at the start; "
        "`plain`: torch's own operations alone",
    )

    max_body_bytes: Count = Field(default=1024 * 1024, description="body of one request")
    max_inputs: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=64, description="inputs of one request; a query with its documents is one input"
    )
    max_call_texts: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1024,
        description="texts of one call to a language model that a guard of a gateway judges, with "
        "the joined ones",
    )
    max_documents: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1000,
        description="documents of one request, over all its queries; options and levels of one "
        "request, over all its questions",
    )
    max_tasks_per_request: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=64, description="tasks that one request may name"
    )
    max_text_chars: Count = Field(
        default=32_768, description="characters of one text, checked before tokenization"
    )

    max_batch_tokens: Count = Field(
        default=4096,
        description="tokens of one forward pass: distinct texts plus (text, task) rows; at least "
        "twice the longest text of the backbone",
    )
    max_batch_rows: Count = Field(
        default=64, description="(text, task) rows of one forward pass; on CUDA 256 if not set"
    )
    batch_overhead: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=FIXED_SHARE,
        description="share of the fixed time in the time of a batch. A lower value raises "
        "throughput, a higher value shortens batches and waits",
    )
    trunk_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] | None = Field(
        default=None,
        description="bytes on the device for trunk states of earlier texts; 0 = no cache. If not "
        "set, a quarter of the backbones' bytes, at least 16 MiB, and 0 on CUDA",
    )
    task_memory_bytes: Annotated[int, Field(ge=1, le=2**50)] | None = Field(
        default=None,
        description="bytes on the device for task versions; if not set, half of the memory that is "
        "free at the start",
    )
    host_memory_bytes: Annotated[int, Field(ge=0, le=2**50)] | None = Field(
        default=None,
        description="bytes of main memory for stored task versions; CUDA only. If not set, half of "
        "the free main memory with CUDA, and 0 on a CPU",
    )
    pins: str = Field(
        default="",
        description=(
            "task references, separated by commas. The server loads these tasks before it is "
            "ready, and keeps them in memory. An alias is looked up once"
        ),
    )
    max_queued_requests: Count = Field(
        default=1024, description="requests without an answer yet; further requests get 429"
    )
    answer_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = Field(
        default=16 * 1024**2,
        description="bytes for what tasks have answered to policies, by caller; a gateway sends "
        "earlier texts again in each call; 0 = no cache",
    )
    max_queued_tokens: Count = Field(
        default=262_144,
        description="tokens of the rows of queued requests, counted through all layers, at least "
        "one for each row and one for 32 logits of outputs; further requests get 429",
    )
    max_held_bytes: Count = Field(
        default=64 * 1024**2, description="bytes of queued bodies; further requests get 429"
    )
    default_deadline_ms: Milliseconds = Field(
        default=30_000, description="deadline of requests without `x-deadline-ms`"
    )

    registry_poll_ms: Milliseconds = Field(
        default=50,
        description="time between two looks for changes that other processes made to the registry",
    )
    registry_lease_s: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        default=None,
        description="without the registry for this long, the server answers 503, so that "
        "`nunatak task promote --wait` is exact. If not set, the server goes on with the versions "
        "it knows",
    )
    replica_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = Field(
        default="",
        description="name of this process in `x-replica-id`, in the log and in `nunatak replicas`, "
        "such as the name of its pod; random if not set",
    )
    replica_address: Annotated[str, Field(max_length=200)] = Field(
        default="",
        description="address in `nunatak replicas`; the name of the host with `port` if not set",
    )
    shadow_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.1, description="largest difference of regression values that counts as agreement"
    )
    decisions_unknown: UnknownQuestions = Field(
        default=UnknownQuestions.REFUSE,
        description="what answers a question without a card: nothing (`refuse`), the likeness of "
        "its options to the text (`embeddings`), or another server (`upstream`)",
    )
    decisions_temperature: Annotated[float, Field(ge=1e-3, allow_inf_nan=False)] = Field(
        default=0.05,
        description="temperature of answers by embeddings: smaller values make the likeliest "
        "option surer",
    )
    decisions_upstream: Annotated[str, Field(pattern=_UPSTREAM)] = Field(
        default="",
        description="URL of another server that answers questions, with http or https, without "
        "user or query, such as `https://host/v1/systemone` or `https://host/v1/decisions`; its "
        "key is in `decisions_upstream_key_file`",
    )
    decisions_upstream_key_file: Path | None = Field(
        default=None, description="file with the API key for the upstream"
    )
    decisions_upstream_model: Annotated[str, Field(min_length=1)] = Field(
        default="jev-latest", description="the model that the upstream is asked for"
    )
    decisions_upstream_calls: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=32, description="calls to the upstream at the same time; further calls wait"
    )
    decisions_upstream_timeout_ms: Milliseconds = Field(
        default=10_000, description="most time of a call to the upstream, with its wait"
    )
    collect: Path | None = Field(
        default=None,
        description="folder for texts that the upstream has answered, to train from; without it "
        "no text is kept",
    )
    collect_rows: Count = Field(default=10_000, description="rows kept for each question")
    collect_days: Annotated[int, Field(ge=1, le=3650)] = Field(
        default=30, description="days for which a row is kept, while a server runs"
    )
    tokenizer_threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="threads that split long texts into tokens"
    )
    load_threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, description="threads that load task versions, one version each"
    )
    compute_threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0, description="threads of one forward pass on a CPU; 0 = torch's own choice"
    )

    keep_alive_s: Seconds = Field(
        default=75, description="time an idle connection stays open; set it above the proxy's"
    )
    grace_s: Seconds = Field(
        default=30, description="at shutdown, time for requests in flight to be answered"
    )
    stall_s: Seconds = Field(
        default=60,
        description="/readyz says 503 when requests have waited this long and no batch has ended",
    )
    drain_delay_s: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=0,
        description="at shutdown, the server accepts requests for this long while /readyz says 503",
    )
    receive_timeout_s: Seconds = Field(
        default=10, description="time to receive a whole request, and to send its answer"
    )
    max_stream_s: Seconds = Field(
        default=3600, description="time to receive the whole text of a stream of verdicts"
    )

    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="log lines for people (`text`) or for programs (`json`)"
    )
    access_log: bool = Field(default=True, description="write one line for each request")

    @field_validator("pins")
    @classmethod
    def _check_pins(cls, pins: str) -> str:
        try:
            _references_in(pins)
        except InvalidNameError as error:
            raise ValueError(str(error)) from error
        return pins

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        try:
            if _NAME.fullmatch(host) is None:
                ip_address(host)
        except ValueError:
            raise ValueError(
                "expected a name or an address without scheme, brackets and port, such as "
                f"127.0.0.1 or ::1, got {host!r}"
            ) from None
        return host

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: str) -> str:
        for origin in _listed(origins):
            found = _ORIGIN.fullmatch(origin)
            if found is None or found["port"] == _DEFAULT_PORTS[found["scheme"]]:
                raise ValueError(
                    "expected origins as browsers send them (scheme, host, and port unless it is "
                    "the scheme's own; lower case, no path, no wildcard), such as "
                    f"https://app.example or http://localhost:3000, got {origin!r}"
                )
        return origins

    @model_validator(mode="after")
    def _has_its_upstream(self) -> Self:
        is_asked = self.decisions_unknown is UnknownQuestions.UPSTREAM
        if (is_asked or self.collect is not None) and not self.decisions_upstream:
            raise ValueError(
                "decisions_upstream must be set if decisions_unknown is `upstream`, or if texts "
                "are collected (collect)"
            )
        return self

    @property
    def knows_callers(self) -> bool:
        """Whether each request needs a key or a token."""
        return self.api_keys_file is not None or bool(self.oidc_issuer)

    def quotas(self) -> Limits:
        limits = {quota: getattr(self, f"max_{quota}") for quota in Quota}
        return {quota: limit for quota, limit in limits.items() if limit is not None}

    @property
    def address_of_replica(self) -> str:
        return self.replica_address or f"{socket.gethostname()}:{self.port}"

    def allowed_origins(self) -> frozenset[str]:
        return frozenset(_listed(self.cors_origins))

    def all_backbones(self) -> tuple[str, ...]:
        return (self.backbone, *_listed(self.other_backbones))

    def pinned(self) -> tuple[TaskReference, ...]:
        return _references_in(self.pins)

    def for_device(self, device_type: str) -> Self:
        if device_type != "cuda":
            return self
        given = self.model_fields_set
        chosen = {name: it for name, it in _CUDA_DEFAULTS.items() if name not in given}
        return self.model_copy(update=chosen)

    def batch_limits(self, *, longest_row_tokens: int) -> BatchLimits:
        """Return the limits of one batch, if every row fits an empty batch.

        Raises:
            NunatakError: `invalid_settings`, a row of `longest_row_tokens`, counted as trunk and
                as branch, does not fit an empty batch, and would block the queue for ever.
        """
        needed = 2 * longest_row_tokens
        if self.max_batch_tokens < needed:
            raise invalid_settings(
                f"max_batch_tokens must be at least {needed} (trunk and branch of one "
                "text of "
                f"{longest_row_tokens} tokens), got {self.max_batch_tokens}; "
                "raise NUNATAK_MAX_BATCH_TOKENS"
            )
        return BatchLimits(max_tokens=self.max_batch_tokens, max_rows=self.max_batch_rows)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _references_in(text: str) -> tuple[TaskReference, ...]:
    return tuple(map(TaskReference.parse, _listed(text)))
