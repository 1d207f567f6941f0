"""`nunatak serve`: run one server process in the foreground."""

# ruff: noqa: PLC0415 - the command imports the server when it runs, not for the help of others

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nunatak_cli.options import CreateOption, SettingsCommand, made_options
from nunatak_cli.output import print_failure, print_text
from nunatak_contract.enums import LogFormat
from nunatak_contract.errors import NunatakError, invalid_settings, needs_extra

if TYPE_CHECKING:
    from nunatak_server.configuration import Configuration

SECTIONS: Final[Mapping[str, str]] = {
    "registry": "Registry and backbone",
    "host": "Address and access",
    "oidc_issuer": "Tokens of an issuer",
    "max_requests_per_minute": "Quotas",
    "device": "Device",
    "max_body_bytes": "Limits of one request",
    "max_batch_tokens": "Batches",
    "trunk_cache_bytes": "Memory",
    "max_queued_requests": "The queue",
    "registry_poll_ms": "Versions",
    "decisions_unknown": "Questions",
    "tokenizer_threads": "Threads",
    "keep_alive_s": "Connections and shutdown",
    "log_format": "Logs",
}
"""Title of each section of the settings, by the first setting of the section."""
LISTS: Final = frozenset({"backbone", "other_backbones", "cors_origins", "oidc_algorithms", "pins"})
"""The settings whose option may be repeated."""


@cache
def server_options() -> tuple[Any, ...]:
    with needs_extra("server"):
        from nunatak_server.settings import ServerSettings

    wanted, panel = dict[str, tuple[Any, Any]](), ""
    for name, field in ServerSettings.model_fields.items():
        panel = SECTIONS.get(name, panel)
        is_flag, option = field.annotation is bool, name.replace("_", "-")
        default = "" if field.default_factory else f" ({field.default})"
        wanted[name] = (
            bool | None if is_flag else list[str] | None,
            typer.Option(
                f"--{option}" + f"/--no-{option}" * is_flag,
                metavar="" if is_flag else "VALUE",
                help=f"{field.description}" + default * (field.default not in {None, ""}),
                rich_help_panel=panel,
            ),
        )
    return made_options(wanted)


class ServeCommand(SettingsCommand):
    """A command with an option for every setting of the server."""

    setting_options = staticmethod(server_options)


def serve(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="NUNATAK_CONFIG",
            help="Settings in TOML; options and environment variables override the file.",
        ),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every setting with its origin, then exit.")
    ] = False,
    create: CreateOption = False,
) -> None:
    """Serve all tasks of a registry over HTTP, until interrupted.

    Each setting is an option, an environment variable (NUNATAK_MAX_INPUTS) and a line of the file.
    """
    with needs_extra("server"):
        from nunatak_server.configuration import Origin, as_toml, configure
        from nunatak_server.errors import START_AGAIN, WRONG_SETTINGS, EngineFailedError
        from nunatak_server.telemetry.logs import log_failure, log_uncaught
    try:
        configuration = configure(_given(context.obj), file=config)
    except NunatakError as error:
        print_failure(error.code, str(error))
        raise typer.Exit(WRONG_SETTINGS) from error
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


def _given(options: Mapping[str, Sequence[str] | bool | None]) -> dict[str, object]:
    """Return the settings that options give; a repeated option of a list gives several values."""
    for name, value in options.items():
        if isinstance(value, Sequence) and len(value) > 1 and name not in LISTS:
            raise invalid_settings(
                f"{name}: expected one value, got {' and '.join(value)} (from: flag)"
            )
    given: dict[str, object] = {
        name: value if isinstance(value, bool) else ",".join(value)
        for name, value in options.items()
        if value is False or value
    }
    backbones = options.get("backbone")
    if isinstance(backbones, Sequence) and len(backbones) > 1:
        given |= {"backbone": backbones[0], "other_backbones": ",".join(backbones[1:])}
    return given


def _run(configuration: "Configuration", *, create_registry: bool) -> int:
    from nunatak_server.processes.supervisor import ReplicaPlace, supervise

    settings, place = configuration.settings, ReplicaPlace.find()
    if place is None and settings.processes > 1:
        # This process loads no library of the model.
        return supervise(settings)
    from nunatak_server.processes.serving import serve, serve_template

    origins = configuration.origins
    if place is not None:
        return serve_template(settings, place, origins=origins, create_registry=create_registry)
    serve(settings, origins=origins, create_registry=create_registry)
    return 0
