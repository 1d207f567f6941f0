"""`nunatak predict`: ask tasks about a text or a file, over HTTP or in this process."""

# ruff: noqa: PLC0415 - the command imports client and server when it runs, not for --help

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_cli import options
from nunatak_cli.asking.predictors import (
    Item,
    PlacedInput,
    Predictor,
    items_of,
    open_inputs,
    open_predictor,
    predicted_of,
)
from nunatak_cli.output import plain_table, print_json, print_json_line, print_part
from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Work, shown_progress
from nunatak_contract.requests import Input, Query, Question
from nunatak_contract.wire import InputFacts
from nunatak_rows import FileFormat
from nunatak_rows.inputs import bad_row

if TYPE_CHECKING:
    from nunatak_client import Parameters, TaskResult

SHOWN_ITEMS = 3
"""Items of an answer that people see; they see every predicted label, and JSON has all items."""
NOTHING = "nothing found"


def predict(  # noqa: PLR0913 - one parameter per option is how typer works
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The text, context or query to ask about."),
    ] = None,
    *,
    task: options.TasksOption,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Ask about every row of a file, or of standard input (-), in place of TEXT, and "
            "print one JSON line for each.",
        ),
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option(
            "--format",
            help="Format of the file. Absent: its suffix tells it; standard input is txt, one text "
            "a line.",
        ),
    ] = None,
    columns: options.TextColumns,
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
        typer.Option(
            help="The rule that joins tokens with labels to entities. Absent: one item per token."
        ),
    ] = None,
    on_long: options.OnLongOption = None,
    server: options.AskedServerOption = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print each answer as soon as it arrives; with --server."),
    ] = False,
    registry: options.RegistryOption = None,
    backbone: options.VersionBackboneOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Ask one or more tasks about a text or a file of texts; exit 1 if a task fails."""
    from nunatak_client import Client, Parameters

    parameters = Parameters(
        on_long=on_long,
        aggregation_strategy=aggregation,
        # A ranking shows its documents as texts.
        return_documents=True if document else None,
    )
    if file is not None:
        if stream or any(it is not None for it in (text, pair, question, document)):
            raise invalid_option(
                "--file takes the place of TEXT, --pair, --question, --document and "
                "--stream; put the texts into columns of the file"
            )
        inputs = open_inputs(file, file_format, columns.spelt)
        with open_predictor(server, task, registry=registry, backbone=backbone) as predictor:
            has_failed = _ask_file(inputs, predictor, task, parameters)
    elif text in {None, "-"} or file_format is not None or columns != options.TextColumns():
        raise invalid_option(
            "expected a TEXT, or --file (with --format, columns and --delimiter where needed); "
            "--file - is standard input"
        )
    else:
        source = _source(text, pair=pair, question=question, documents=document or ())
        if stream:
            if server is None:
                raise invalid_option("--stream needs a server; name one with --server")
            with Client(server) as client:
                answers = client.stream(source, task, parameters=parameters)
                has_failed = _print_stream(answers, as_json=as_json)
        else:
            with open_predictor(server, task, registry=registry, backbone=backbone) as predictor:
                asked = predictor.answers.predict_many(source, task, parameters=parameters)
            has_failed = _print_answers(asked.results, as_json=as_json)
    if has_failed:
        raise typer.Exit(1)


def _ask_file(
    inputs: Iterator[PlacedInput],
    predictor: Predictor,
    tasks: Sequence[str],
    parameters: "Parameters",
) -> bool:
    """Print one line for every input, in order; return whether a task failed."""
    asked, unanswered = tee(inputs)
    answered = predictor.ask((source for _, source in asked), tasks, parameters=parameters)
    has_failed = False
    # Answers on a terminal are progress enough.
    with shown_progress(quiet=sys.stdout.isatty()) as progress:
        progress.begin(Work("asked", unit="input"))
        try:
            for answers, (where, _) in zip(answered, unanswered, strict=True):
                has_failed = has_failed or any(it.error is not None for it in answers)
                results: list[JsonValue] = [_answer_json(answer) for answer in answers]
                print_json_line({"place": where, "results": results})
                progress.advance()
        except NunatakError as error:
            if error.position is None:
                raise
            # The answers to all inputs before the refused one are printed.
            raise bad_row(next(unanswered)[0], error.problem) from error
    return has_failed


def _print_answers(found: "Sequence[TaskResult]", *, as_json: bool) -> bool:
    """Print the answers to one input; return whether a task failed."""
    if as_json:
        print_json({"results": [_answer_json(answer) for answer in found]})
    else:
        print_part(_answers_table(found))
    return any(answer.error is not None for answer in found)


def _source(
    text: str, *, pair: str | None, question: str | None, documents: Sequence[str]
) -> Input:
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
            raise invalid_option(
                "expected at most one of --pair, --question and --document; "
                "use one command for each"
            )


def _print_stream(answers: "Iterable[TaskResult]", *, as_json: bool) -> bool:
    """Print every answer as it arrives; return whether a task failed."""
    has_failed = False
    for answer in answers:
        has_failed = has_failed or answer.error is not None
        if as_json:
            print_json_line(_answer_json(answer))
        else:
            print_part(_answer_line(answer))
    return has_failed


def _answers_table(answers: "Iterable[TaskResult]") -> Table:
    table = plain_table()
    table.add_column("task", style="cyan", no_wrap=True)
    for heading in ("version", "score"):
        table.add_column(heading, justify="right")
    table.add_column("answer")
    table.add_column("next", style="dim")
    for answer in answers:
        version = "-" if answer.version is None else str(answer.version)
        if answer.error is not None:
            table.add_row(answer.reference, version, "-", Text(_failure(answer), style="red"), "")
            continue
        (first, others), mark = _shown(answer), _truncation_mark(answer)
        table.add_row(
            answer.reference,
            version,
            f"{first[0]['score']:.4f}" if first else "-",
            Text.assemble((", ".join(map(_item_text, first)) or NOTHING, "bold"), mark),
            _scored_text(others),
        )
    return table


def _answer_line(answer: "TaskResult") -> Text:
    version = "" if answer.version is None else f" (version {answer.version})"
    name = (f"{answer.reference}{version}: ", "cyan")
    if answer.error is not None:
        return Text.assemble(name, (_failure(answer), "red"))
    first, others = _shown(answer)
    if isinstance(predicted_of(answer), tuple):
        shown = f"{_scored_text(first) or NOTHING}; next {_scored_text(others) or '-'}"
    else:
        shown = _scored_text((*first, *others)) or NOTHING
    return Text.assemble(name, shown, _truncation_mark(answer))


def _shown(answer: "TaskResult") -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the items that are the answer, and the next ones.

    The answer of a multi-label task is all labels that apply. Any other answer is the first item.
    """
    items, named = items_of(answer), predicted_of(answer)
    if not isinstance(named, tuple):
        return items[:1], items[1:SHOWN_ITEMS]
    predicted = tuple(item for item in items if item["label"] in named)
    others = tuple(item for item in items if item["label"] not in named)
    return predicted, others[: SHOWN_ITEMS - 1]


def _scored_text(items: Iterable[Item]) -> str:
    return ", ".join(f"{_item_text(item)} {item['score']:.4f}" for item in items)


def _truncation_mark(answer: "TaskResult") -> tuple[str, str]:
    if not answer.is_truncated:
        return "", ""
    return f" (truncated: only {counted(sum(answer.tokens), 'token')} read)", "yellow"


def _failure(answer: "TaskResult") -> str:
    from nunatak_client.replies import error_of

    error = answer.error  # about one input, whose place nobody needs
    return "" if error is None else f"error [{error.code}]: {error_of(error).problem}"


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


def _answer_json(answer: "TaskResult") -> dict[str, JsonValue]:
    """Return an answer in the shape of the server's `POST /v1/predict`."""
    from nunatak_client.replies import error_of

    if answer.error is not None:
        detail = error_of(answer.error).problem
        problem: dict[str, JsonValue] = {"code": answer.error.code, "detail": detail}
        return {"reference": answer.reference, "error": problem}
    said = answer.require().model_dump(mode="json")
    told = answer.model_dump(include=set(InputFacts.model_fields))
    return {
        "reference": answer.reference,
        "version": answer.version,
        "problem_type": said.get("problem_type"),
        "predicted": next(iter(said.get("predicted", ())), None),
        "outputs": [dict(item) for item in items_of(answer)],
        **{name: values[0] for name, values in told.items() if values},
    }
