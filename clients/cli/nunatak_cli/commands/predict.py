"""`nunatak predict`: ask tasks about a text, over HTTP or in this process."""

# ruff: noqa: PLC0415 - heavy imports run when their command does, not for --help

from typing import Annotated

import typer

from nunatak_cli.errors import InvalidOptionError
from nunatak_cli.failures import needs_extra
from nunatak_cli.options import (
    AggregationName,
    BackboneOption,
    JsonOption,
    RegistryOption,
)
from nunatak_cli.output import console, print_json
from nunatak_contract.enums import OnLong


def predict(  # noqa: PLR0913 - one parameter per option is how typer works
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text, context or query to ask about.")
    ],
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
    question: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Question about TEXT, for question answering."),
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Document to rank for TEXT. Repeat for several."),
    ] = None,
    aggregation: Annotated[
        AggregationName | None,
        typer.Option(help="How token labels are put together. Absent: not at all."),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help="What becomes of a text of more tokens than the task reads at once. "
            "Absent: as the task version says."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Ask this server. Absent: load the tasks into this process."
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print each task's answer as it comes; with --server."),
    ] = False,
    registry: RegistryOption = None,
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask one or more tasks about a text; exit 1 if one of them fails."""
    from nunatak_cli.sources import parameters_of, source_of
    from nunatak_cli.views.answers import answer_json, answer_table

    source = source_of(text, pair=pair, question=question, documents=document or ())
    parameters = parameters_of(source, aggregation=aggregation, on_long=on_long)
    if stream:
        from nunatak_cli.streaming import print_stream

        if server is None:
            raise InvalidOptionError("--stream needs a server that streams; name it with --server")
        if not print_stream(server, source, task, parameters=parameters, as_json=as_json):
            raise typer.Exit(1)
        return
    if server is not None:
        from nunatak_cli.asking import ask_server

        answers = ask_server(server, source, task, parameters=parameters)
    else:
        with needs_extra("server"):
            from nunatak_cli.local import ask_here
        answers = ask_here(
            source, task, parameters=parameters, registry=registry, backbone=backbone
        )
    if as_json:
        print_json({"results": [answer_json(answer) for answer in answers]})
    else:
        console().print(answer_table(answers))
    if any(answer.error_code is not None for answer in answers):
        raise typer.Exit(1)
