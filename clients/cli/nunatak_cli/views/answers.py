"""Answers of several tasks to one text, as a table and as JSON; whoever answered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

SHOWN_ITEMS = 3

Item = Mapping[str, JsonValue]
"""One label, entity, answer or document with its score, in the shape of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one task says, best first (entities: in the order of the text), or why nothing."""

    reference: str
    version: int | None
    items: tuple[Item, ...]
    num_tokens: int | None = None
    """How many tokens of the text were read; None: the server does not tell it."""
    is_truncated: bool = False
    """Whether a part of the text was not read."""
    error_code: str | None = None
    error_message: str = ""


def answer_table(answers: Iterable[Answer]) -> Table:
    """One row per task."""
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
        shown = [(_text(item), f"{item['score']:.4f}") for item in answer.items[:SHOWN_ITEMS]]
        text, score = shown[0] if shown else ("nothing found", "-")
        table.add_row(
            answer.reference,
            version,
            score,
            Text.assemble((text, "bold"), _mark(answer)),
            ", ".join(f"{text} {score}" for text, score in shown[1:]),
        )
    return table


def answer_line(answer: Answer) -> Text:
    """One task in one line."""
    version = "" if answer.version is None else f" (version {answer.version})"
    name = (f"{answer.reference}{version}: ", "cyan")
    if answer.error_code is not None:
        return Text.assemble(name, (f"error [{answer.error_code}]: {answer.error_message}", "red"))
    shown = ", ".join(f"{_text(it)} {it['score']:.4f}" for it in answer.items[:SHOWN_ITEMS])
    return Text.assemble(name, shown or "nothing found", _mark(answer))


def _mark(answer: Answer) -> tuple[str, str]:
    """Say that a part of the text was not read."""
    told = f" (truncated: only {answer.num_tokens} tokens were read)"
    return (told if answer.is_truncated else "", "yellow")


def _text(item: Item) -> str:
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


def answer_json(answer: Answer) -> dict[str, JsonValue]:
    """One answer in the shape of the server's `POST /v1/predict`."""
    if answer.error_code is not None:
        problem: JsonValue = {"code": answer.error_code, "detail": answer.error_message}
        return {"reference": answer.reference, "error": problem}
    return {
        "reference": answer.reference,
        "version": answer.version,
        "outputs": [dict(item) for item in answer.items],
        **_extent_json(answer),
    }


def _extent_json(answer: Answer) -> dict[str, JsonValue]:
    if answer.num_tokens is None:
        return {}
    return {"tokens": answer.num_tokens, "truncated": answer.is_truncated}
