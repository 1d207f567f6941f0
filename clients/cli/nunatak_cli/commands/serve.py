"""`nunatak serve`: one server process in the foreground."""

# ruff: noqa: PLC0415 - the server is imported when it starts, not for --help

import os
from pathlib import Path
from typing import Annotated

import typer

from nunatak_cli.assignments import assignments
from nunatak_cli.failures import needs_extra, print_failure
from nunatak_cli.options import BackboneOption, DtypeName, LogFormatName, RegistryOption
from nunatak_cli.output import print_text

LIMITS = "Limits (each also by environment: NUNATAK_MAX_INPUTS, ...)"


def serve(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="NUNATAK_CONFIG",
            help="Settings in TOML, for what neither options nor the environment set.",
            show_default=False,
        ),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="Print the settings and their origins, and leave."),
    ] = False,
    registry: RegistryOption = None,
    backbone: BackboneOption = None,
    backbone_layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Hold only the lowest N layers, for tasks that own all above (all).",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to listen at (127.0.0.1).", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="N", help="Port (8080); 0 = any free one."),
    ] = None,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Keys, made by `nunatak key create`; without: open."),
    ] = None,
    insecure_open: Annotated[
        bool | None,
        typer.Option(
            "--insecure-open", help="Serve other machines without keys: something else guards."
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REF",
            help="Load this task before the first request, and keep it in memory. Repeatable.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of --show-config, as in batch_overhead=0.2. Repeatable.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Where to compute (auto).")
    ] = None,
    dtype: Annotated[
        DtypeName | None,
        typer.Option(help="Numbers (auto: float32 on a CPU, bfloat16 on CUDA)."),
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
        typer.Option(min=1, metavar="N", help="Further ones get 429.", rich_help_panel=LIMITS),
    ] = None,
    default_deadline_ms: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="For requests that set none.", rich_help_panel=LIMITS
        ),
    ] = None,
    task_memory_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="For task versions, on the device (half of what is free there).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    host_memory_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="For their stored bytes, in main memory (half of what is free; none on a CPU).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    trunk_cache_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="For what is frozen of texts asked before (256 MiB); 0 = none.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    tokenizer_threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Threads that split texts.", rich_help_panel=LIMITS),
    ] = None,
    compute_threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Threads of one forward pass; 0 = torch's choice.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    log_format: Annotated[
        LogFormatName | None, typer.Option(help="Lines for people or for programs (text).")
    ] = None,
    access_log: Annotated[
        bool | None,
        typer.Option("--access-log/--no-access-log", help="One line for each request (yes)."),
    ] = None,
    drain_delay_s: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="After SIGTERM, requests are taken for this long while /readyz says 503 (0).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
) -> None:
    """Serve all tasks of a registry over HTTP, until interrupted."""
    # The shared option reads this variable itself; its origin is still the environment.
    from_environment = registry == os.environ.get("NUNATAK_REGISTRY")
    given = {
        "registry": None if from_environment else registry,
        "backbone": backbone,
        "backbone_layers": backbone_layers,
        "host": host,
        "port": port,
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
        from nunatak_server.errors import EngineFailedError
        from nunatak_server.serving import START_AGAIN
        from nunatak_server.serving import serve as run_server
        from nunatak_server.settings import as_toml, configure
    # What has a flag of its own is given by that.
    named = {name: value for name, value in given.items() if value is not None}
    others = assignments("--set", settings, may_be_empty=True)
    configuration = configure({**others, **named}, file=config)
    if show_config:
        print_text(as_toml(configuration))
        return
    try:
        run_server(configuration.settings, origins=configuration.origins)
    except EngineFailedError as error:
        print_failure(error.code, str(error))
        raise typer.Exit(START_AGAIN) from error
