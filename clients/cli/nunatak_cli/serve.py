"""`nunatak serve`: run one server process in the foreground."""

# ruff: noqa: PLC0415 - the command imports the server when it runs, not for --help

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli.failures import print_failure
from nunatak_cli.options import (
    CreateOption,
    RegistryOption,
    assignments,
)
from nunatak_cli.output import print_text
from nunatak_contract.enums import LogFormat, ServingDtype
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_server.settings import Configuration

LIMITS = "Limits (each also has an environment variable: NUNATAK_MAX_INPUTS, ...)"


def serve(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="NUNATAK_CONFIG",
            help="Settings in TOML; options and environment variables override the file.",
            show_default=False,
        ),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="Print every setting with its origin, then exit."),
    ] = False,
    registry: RegistryOption = None,
    create: CreateOption = False,
    backbone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="minilm|NAME|PATH|HUB_ID",
            help="Backbone of the tasks (minilm). Repeatable: each task runs on its own backbone, "
            "and the first one also answers embeddings that name no model.",
            show_default=False,
        ),
    ] = None,
    backbone_layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Load only the lowest N layers (all). Every task must own the layers above.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to listen at (127.0.0.1).", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="N", help="Port (8080); 0: any free port."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes that share the port and the backbone's memory (1); CPU only.",
        ),
    ] = None,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="File of keys (`nunatak key create`). Absent: no key is needed."
        ),
    ] = None,
    insecure_open: Annotated[
        bool | None,
        typer.Option(
            "--insecure-open",
            help="Serve other machines without keys: only behind a proxy that checks callers.",
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REF",
            help="Load this task before the first request and keep it in memory. Repeatable.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting that --show-config lists, such as batch_overhead=0.2. Repeatable.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Device that computes (auto).")
    ] = None,
    dtype: Annotated[
        ServingDtype | None,
        typer.Option(help="Number format (auto: float32 on a CPU, bfloat16 on CUDA)."),
    ] = None,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per batch.", rich_help_panel=LIMITS),
    ] = None,
    max_batch_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows per batch.", rich_help_panel=LIMITS)
    ] = None,
    max_inputs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Texts per request.", rich_help_panel=LIMITS),
    ] = None,
    max_queued_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Requests that wait; further requests get 429.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    default_deadline_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Deadline of requests that set none.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    task_memory_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Memory for task versions on the device (half of its free memory).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    host_memory_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Host memory for the stored bytes of task versions (half of the free memory; 0 on "
            "a CPU).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    trunk_cache_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Memory for trunk states of texts that were read before (256 MiB); 0: no cache.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    tokenizer_threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Threads that tokenize texts.", rich_help_panel=LIMITS
        ),
    ] = None,
    compute_threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Threads of one forward pass; 0: torch decides.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Format of the log: for people or for programs (text)."),
    ] = None,
    access_log: Annotated[
        bool | None,
        typer.Option("--access-log/--no-access-log", help="Log one line per request (yes)."),
    ] = None,
    drain_delay_s: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Seconds after SIGTERM in which the server still takes requests while /readyz "
            "answers 503 (0).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
) -> None:
    """Serve all tasks of a registry over HTTP, until interrupted."""
    # The shared option --registry reads NUNATAK_REGISTRY too, but its origin is the environment.
    from_environment = registry == os.environ.get("NUNATAK_REGISTRY")
    given = {
        "registry": None if from_environment else registry,
        "backbone": backbone[0] if backbone else None,
        "other_backbones": ",".join(backbone[1:]) if backbone else None,
        "backbone_layers": backbone_layers,
        "host": host,
        "port": port,
        "processes": processes,
        "api_keys_file": api_keys_file,
        "insecure_open": insecure_open,
        "pins": ",".join(pin) if pin else None,
        "device": device,
        "dtype": dtype,
        "max_batch_tokens": max_batch_tokens,
        "max_batch_rows": max_batch_rows,
        "max_inputs": max_inputs,
        "max_queued_requests": max_queued_requests,
        "default_deadline_ms": default_deadline_ms,
        "task_memory_bytes": task_memory_bytes,
        "host_memory_bytes": host_memory_bytes,
        "trunk_cache_bytes": trunk_cache_bytes,
        "tokenizer_threads": tokenizer_threads,
        "compute_threads": compute_threads,
        "log_format": log_format,
        "access_log": access_log,
        "drain_delay_s": drain_delay_s,
    }
    with needs_extra("server"):
        from nunatak_server.errors import START_AGAIN, EngineFailedError
        from nunatak_server.settings import Origin, as_toml, configure
        from nunatak_server.telemetry.logs import log_failure, log_uncaught
    # A setting's own option overrides --set.
    named = {name: value for name, value in given.items() if value is not None}
    others = assignments("--set", settings, may_be_empty=True)
    configuration = configure({**others, **named}, file=config)
    if show_config:
        print_text(as_toml(configuration))
        return
    is_default = configuration.origins["registry"] is Origin.DEFAULT
    is_text = configuration.settings.log_format is LogFormat.TEXT
    try:
        status = _run(configuration, create_registry=create or is_default)
    except NunatakError as error:
        report = print_failure if is_text else log_failure
        report(error.code, str(error))
        status = START_AGAIN if isinstance(error, EngineFailedError) else 1
        raise typer.Exit(status) from error
    except Exception as error:
        if is_text:
            raise
        log_uncaught(error)
        raise typer.Exit(1) from error
    if status:
        raise typer.Exit(status)


def _run(configuration: "Configuration", *, create_registry: bool) -> int:
    """Serve from this process or from several, and return the exit status."""
    from nunatak_server.supervisor import ReplicaPlace, supervise

    settings, place = configuration.settings, ReplicaPlace.find()
    if place is None and settings.processes > 1:
        # This process loads no library of the model.
        return supervise(settings)
    from nunatak_server.serving import serve, serve_template

    origins = configuration.origins
    if place is not None:
        return serve_template(settings, place, origins=origins, create_registry=create_registry)
    serve(settings, origins=origins, create_registry=create_registry)
    return 0
