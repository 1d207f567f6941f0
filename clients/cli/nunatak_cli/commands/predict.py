"""`nunatak predict`: ask tasks about a text, over HTTP or in this process."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

from typing import Annotated

import typer

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import BackboneOption, JsonOption, RegistryOption
from nunatak_cli.output import console, print_json


def predict(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to ask about.")],
    *,
    task: Annotated[
        list[str],
        typer.Option(
            metavar="REF", help="Task: name, name@alias or name/version. Repeat for several."
        ),
    ],
    pair: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Second text, for tasks about pairs of texts."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Ask this server. Absent: load the tasks into this process."
        ),
    ] = None,
    registry: RegistryOption = None,
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask one or more tasks about a text; exit 1 if one of them fails."""
    from nunatak_cli.views.answers import answer_json, answer_table

    source = text if pair is None else (text, pair)
    if server is not None:
        from nunatak_cli.asking import ask_server

        answers = ask_server(server, source, task)
    else:
        with needs_extra("server"):
            from nunatak_cli.local import ask_here
        answers = ask_here(source, task, registry=registry, backbone=backbone)
    if as_json:
        print_json({"results": [answer_json(answer) for answer in answers]})
    else:
        console().print(answer_table(answers))
    if any(answer.error_code is not None for answer in answers):
        raise typer.Exit(1)
