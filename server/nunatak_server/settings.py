"""Settings of the server process, with units in their names.

`ServerSettings` holds every setting, frozen. No other module reads the environment. `configure`
merges the sources, the strongest first:

    flags  >  NUNATAK_* in the environment  >  a TOML file  >  defaults

`--config` or NUNATAK_CONFIG names the file. The file holds setting names without sections. An
unknown name is refused.
"""

import os
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from nunatak_contract.enums import Kernels, LogFormat, ServingDtype, UnknownQuestions
from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.names import API_KEY_VARIABLE, CACHE_VARIABLE, DEFAULT_BACKBONE, TaskReference
from nunatak_server.scheduler.batch_time import FIXED_SHARE, BatchLimits

Count = Annotated[int, Field(ge=1, le=2**31)]
Milliseconds = Annotated[int, Field(ge=1, le=600_000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]


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
        env_prefix="NUNATAK_", env_ignore_empty=True, frozen=True, extra="forbid"
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
    trunk_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = Field(
        default=256 * 1024**2,
        description="bytes on the device for trunk states of earlier texts; 0 = no cache. On CUDA "
        "0 if not set",
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
        description="what answers a question without a card: nothing (`refuse`), or the likeness "
        "of its options to the text (`embeddings`)",
    )
    decisions_temperature: Annotated[float, Field(ge=1e-3, allow_inf_nan=False)] = Field(
        default=0.05,
        description="temperature of answers by embeddings: smaller values make the likeliest "
        "option surer",
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
            raise NunatakError(
                "invalid_settings",
                problem=f"max_batch_tokens must be at least {needed} (trunk and branch of one "
                "text of "
                f"{longest_row_tokens} tokens), got {self.max_batch_tokens}; "
                "raise NUNATAK_MAX_BATCH_TOKENS",
            )
        return BatchLimits(max_tokens=self.max_batch_tokens, max_rows=self.max_batch_rows)


PREFIX: Final = "NUNATAK_"
CONFIG_VARIABLE: Final = "NUNATAK_CONFIG"
HIDDEN: Final = "***"


class Origin(StrEnum):
    """The source of a value, the strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    settings: ServerSettings
    origins: Mapping[str, Origin]

    def shown(self) -> Iterator[tuple[str, object, Origin]]:
        """Yield name, value and origin of every setting, secrets hidden."""
        for name, origin in self.origins.items():
            yield name, shown_value(getattr(self.settings, name)), origin


def configure(given: Mapping[str, object], *, file: Path | None = None) -> Configuration:
    """Return the settings: `given` by flags, and for the rest the environment and the file."""
    named = os.environ.get(CONFIG_VARIABLE)
    path = file or (Path(named) if named else None)
    sources: dict[Origin, Mapping[str, object]] = {
        Origin.FLAG: given,
        Origin.ENVIRONMENT: EnvSettingsSource(ServerSettings)(),
        Origin.FILE: {} if path is None else _read(path),
    }
    origins = {name: _origin(name, sources) for name in ServerSettings.model_fields}
    values = {
        name: value for source in reversed(sources.values()) for name, value in source.items()
    }
    try:
        settings = ServerSettings.model_validate(values)
    except ValidationError as error:
        raise _as_known(error, sources, path) from None
    return Configuration(settings=settings, origins=origins)


def as_toml(configuration: Configuration) -> str:
    return "".join(
        f"{_assignment(name, value)}  # {origin}\n" for name, value, origin in configuration.shown()
    )


def shown_value(value: object) -> object:
    """Return a value for printing: user, password and query of a URL are hidden."""
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return HIDDEN
        case str() if "://" in value:
            # Replaced in the text, because a parser would lose a slash of `sqlite:////path`.
            named = re.sub(r"(?<=://).*@", f"{HIDDEN}@", value)
            return re.sub(r"\?.*", f"?{HIDDEN}", named)
        case _:
            return str(value)


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """Return variables with our prefix that no program of ours reads, such as typing errors."""
    known = {f"{PREFIX}{name}".lower() for name in ServerSettings.model_fields}
    # The other commands read these, and one file of variables may serve all commands.
    known |= {it.lower() for it in (CONFIG_VARIABLE, API_KEY_VARIABLE, CACHE_VARIABLE)}
    return sorted(
        name
        for name in environment
        if name.upper().startswith(PREFIX) and name.lower() not in known
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _references_in(text: str) -> tuple[TaskReference, ...]:
    return tuple(map(TaskReference.parse, _listed(text)))


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as lines:
            return tomllib.load(lines)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NunatakError(
            "invalid_settings",
            problem=f"the configuration file {path} cannot be read ({reason}); it must be TOML "
            "with one "
            "setting a line, such as: port = 8080",
        ) from None


def _origin(name: str, sources: Mapping[Origin, Mapping[str, object]]) -> Origin:
    return next((origin for origin, source in sources.items() if name in source), Origin.DEFAULT)


def _as_known(
    error: ValidationError, sources: Mapping[Origin, Mapping[str, object]], path: Path | None
) -> NunatakError:
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"])) or "settings"
    message = first["msg"]
    if first["type"] == "extra_forbidden":
        message = "there is no such setting; `nunatak serve --show-config` lists them all"
    match _origin(name, sources):
        case Origin.ENVIRONMENT:
            place = f"environment, {PREFIX}{name.upper()}"
        case Origin.FILE:
            place = f"file, {path}"
        case other:
            place = other.value
    return NunatakError("invalid_settings", problem=f"{name}: {message} (from: {place})")


def _assignment(name: str, value: object) -> str:
    match value:
        case None:
            return f"# {name} is not set"
        case bool():
            return f"{name} = {str(value).lower()}"
        case int() | float():
            return f"{name} = {value}"
        case _:
            return f"{name} = {_quoted(str(value))}"


def _quoted(text: str) -> str:
    escaped = "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'
