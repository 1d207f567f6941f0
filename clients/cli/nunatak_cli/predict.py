"""`nunatak predict`: ask tasks about a text, over HTTP or in this process."""

# ruff: noqa: PLC0415 - the command imports client and server when it runs, not for --help

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, TypeAdapter
from rich.table import Table
from rich.text import Text

from nunatak_cli.failures import needs_extra
from nunatak_cli.options import (
    BackboneOption,
    JsonOption,
    RegistryOption,
)
from nunatak_cli.output import console, print_json, print_json_line
from nunatak_cli.registries import existing_location
from nunatak_contract.enums import AggregationStrategy, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.inputs import Input, Query, Question

if TYPE_CHECKING:
    from nunatak_client import Entity, Parameters, Predicted, TaskResult
    from nunatak_server.predict.types import TaskFailure, TaskPrediction

SHOWN_ITEMS = 3
"""Most items of an answer in a table; JSON has all items."""

Item = Mapping[str, JsonValue]
"""One label, entity, answer or document with its score, in the shape of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """The answer of one task, or its error."""

    reference: str
    version: int | None
    items: tuple[Item, ...]
    """The best item first; entities are in the order of the text."""
    num_tokens: int | None = None
    """Tokens of the text that the task read; None if the server does not report the number."""
    is_truncated: bool = False
    """Whether the task did not read a part of the text."""
    error_code: str | None = None
    error_message: str = ""


def predict(  # noqa: PLR0913 - one parameter per option is how typer works
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text, context or query to ask about.")
    ],
    *,
    task: Annotated[
        list[str],
        typer.Option(metavar="REF", help="Task: name, name@alias or name/version. Repeatable."),
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
        typer.Option(metavar="TEXT", help="Document to rank for TEXT. Repeatable."),
    ] = None,
    aggregation: Annotated[
        AggregationStrategy | None,
        typer.Option(help="How tokens with labels become entities. Absent: one item per token."),
    ] = None,
    on_long: Annotated[
        OnLong | None,
        typer.Option(
            help=(
                "Treatment of a text with more tokens than the task reads at once. Absent: the "
                "task version decides."
            )
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
        typer.Option("--stream", help="Print each answer as soon as it arrives; with --server."),
    ] = False,
    registry: RegistryOption = None,
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask one or more tasks about a text; exit 1 if a task fails."""
    source = _source(text, pair=pair, question=question, documents=document or ())
    parameters = _parameters(source, aggregation=aggregation, on_long=on_long)
    if stream:
        if server is None:
            raise NunatakError(
                "invalid_option", problem="--stream needs a server; name one with --server"
            )
        answers = _stream_server(server, source, task, parameters=parameters)
        has_failed = _print_stream(answers, as_json=as_json)
    else:
        found = (
            _ask_here(source, task, parameters=parameters, registry=registry, backbone=backbone)
            if server is None
            else _ask_server(server, source, task, parameters=parameters)
        )
        if as_json:
            print_json({"results": [_answer_json(answer) for answer in found]})
        else:
            console().print(_answers_table(found))
        has_failed = any(answer.error_code is not None for answer in found)
    if has_failed:
        raise typer.Exit(1)


def _source(
    text: str, *, pair: str | None, question: str | None, documents: Sequence[str]
) -> Input:
    """Return the one input that the options describe.

    Raises:
        NunatakError: `invalid_option`, the options describe several kinds of input.
    """
    match pair, question, documents:
        case None, None, ():
            return text
        case str(), None, ():
            return text, pair
        case None, str(), ():
            return Question(question=question, context=text)
        case None, None, _:
            return Query(query=text, documents=documents)
        case _:
            raise NunatakError(
                "invalid_option",
                problem="expected at most one of --pair, --question and --document; "
                "use one command for each",
            )


def _parameters(
    source: Input, *, aggregation: AggregationStrategy | None, on_long: OnLong | None
) -> "Parameters":
    """Return the parameters of the request; a ranking shows its documents as texts."""
    from nunatak_client import Parameters

    return Parameters(
        on_long=on_long,
        aggregation_strategy=aggregation,
        return_documents=True if isinstance(source, Query) else None,
    )


def _ask_server(
    server: str, source: Input, tasks: Sequence[str], *, parameters: "Parameters"
) -> list[ShownAnswer]:
    """Ask a server about all tasks in one request."""
    from nunatak_client import Client

    with Client(server) as client:
        fan_out = client.predict_many(source, tasks, parameters=parameters)
    return [_server_answer(result) for result in fan_out.results]


def _stream_server(
    server: str, source: Input, tasks: Sequence[str], *, parameters: "Parameters"
) -> Iterator[ShownAnswer]:
    """Ask a server about all tasks in one request, and yield each answer as it arrives."""
    from nunatak_client import Client

    with Client(server) as client:
        for result in client.stream(source, tasks, parameters=parameters):
            yield _server_answer(result)


def _server_answer(result: "TaskResult") -> ShownAnswer:
    problem = result.error
    if problem is not None:
        return ShownAnswer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=problem.code,
            error_message=problem.detail or problem.title,
        )
    return ShownAnswer(
        reference=result.reference,
        version=result.version,
        items=_items(result.require()),
        num_tokens=sum(result.tokens) if result.tokens else None,
        is_truncated=result.is_truncated,
    )


def _items(predicted: "Predicted") -> tuple[Item, ...]:
    """Return the outputs for the one input, in the shape of the server."""
    from nunatak_client import TokenClassification

    if isinstance(predicted, TokenClassification):
        return tuple(_entity(entity) for entity in predicted.outputs[0])
    return tuple(item.model_dump(exclude_none=True) for item in predicted.outputs[0])


def _entity(entity: "Entity") -> Item:
    is_group = entity.index is None
    place = entity.model_dump(exclude={"label"}, exclude_none=True)
    return {"entity_group" if is_group else "entity": entity.label, **place}


def _ask_here(
    source: Input,
    tasks: Sequence[str],
    *,
    parameters: "Parameters",
    registry: str | None,
    backbone: str | None,
) -> list[ShownAnswer]:
    """Ask tasks in this process, with the engine of the server and without HTTP."""
    with needs_extra("server"):
        from nunatak_contract import requests
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
        from nunatak_registry import Registry
        from nunatak_server.http.requests import options_of
        from nunatak_server.local import LocalPredictor

    options = options_of(requests.Parameters.model_validate(parameters.wire()))
    with Registry.open(existing_location(registry)) as opened:
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        with LocalPredictor(opened, loaded) as predictor:
            prediction = predictor.predict([source], tasks, options=options)
    return [_local_answer(result) for result in prediction.results]


def _local_answer(result: "TaskPrediction | TaskFailure") -> ShownAnswer:
    from nunatak_server.predict.types import TaskFailure

    if isinstance(result, TaskFailure):
        return ShownAnswer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=result.error.code,
            error_message=str(result.error),
        )
    items = TypeAdapter(tuple[dict[str, JsonValue], ...])
    return ShownAnswer(
        reference=result.reference,
        version=result.version,
        items=items.validate_python(result.outputs[0]),
        num_tokens=result.extents[0].num_tokens,
        is_truncated=result.extents[0].is_cut,
    )


def _print_stream(answers: Iterable[ShownAnswer], *, as_json: bool) -> bool:
    """Print every answer as it arrives; return whether a task failed."""
    has_failed = False
    for answer in answers:
        has_failed = has_failed or answer.error_code is not None
        if as_json:
            print_json_line(_answer_json(answer))
        else:
            console().print(_answer_line(answer), soft_wrap=True)
    return has_failed


def _answers_table(answers: Iterable[ShownAnswer]) -> Table:
    """Return one row per task."""
    table = Table(box=None, header_style="bold")
    table.add_column("task", style="cyan", no_wrap=True)
    for heading in ("version", "score"):
        table.add_column(heading, justify="right")
    table.add_column("answer")
    table.add_column("next", style="dim")
    for answer in answers:
        version = "-" if answer.version is None else str(answer.version)
        if answer.error_code is not None:
            problem = Text(f"error [{answer.error_code}]: {answer.error_message}", style="red")
            table.add_row(answer.reference, version, "-", problem, "")
            continue
        shown = [(_item_text(item), f"{item['score']:.4f}") for item in answer.items[:SHOWN_ITEMS]]
        text, score = shown[0] if shown else ("nothing found", "-")
        table.add_row(
            answer.reference,
            version,
            score,
            Text.assemble((text, "bold"), _truncation_mark(answer)),
            ", ".join(f"{text} {score}" for text, score in shown[1:]),
        )
    return table


def _answer_line(answer: ShownAnswer) -> Text:
    version = "" if answer.version is None else f" (version {answer.version})"
    name = (f"{answer.reference}{version}: ", "cyan")
    if answer.error_code is not None:
        return Text.assemble(name, (f"error [{answer.error_code}]: {answer.error_message}", "red"))
    items = answer.items[:SHOWN_ITEMS]
    shown = ", ".join(f"{_item_text(item)} {item['score']:.4f}" for item in items)
    return Text.assemble(name, shown or "nothing found", _truncation_mark(answer))


def _truncation_mark(answer: ShownAnswer) -> tuple[str, str]:
    mark = f" (truncated: only {answer.num_tokens} tokens were read)"
    return (mark if answer.is_truncated else "", "yellow")


def _item_text(item: Item) -> str:
    match item:
        case {"label": label}:
            return str(label)
        case {"word": word, "entity": label} | {"word": word, "entity_group": label}:
            return f"{word} [{label}]"
        case {"answer": answer}:
            return str(answer) or "(no answer)"
        case {"document": document}:
            return str(document)
        case _:
            return f"document {item['index']}"


def _answer_json(answer: ShownAnswer) -> dict[str, JsonValue]:
    """Return an answer in the shape of the server's `POST /v1/predict`."""
    if answer.error_code is not None:
        problem: JsonValue = {"code": answer.error_code, "detail": answer.error_message}
        return {"reference": answer.reference, "error": problem}
    extent: dict[str, JsonValue] = {}
    if answer.num_tokens is not None:
        extent = {"tokens": answer.num_tokens, "truncated": answer.is_truncated}
    return {
        "reference": answer.reference,
        "version": answer.version,
        "outputs": [dict(item) for item in answer.items],
        **extent,
    }
