"""Answers of several tasks to one text, as a table and as JSON; whoever answered."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

SHOWN_LABELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one task says: labels with scores, best first, or why it says nothing."""

    reference: str
    version: int | None
    scores: tuple[tuple[str, float], ...]
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
        (label, score), *others = answer.scores
        table.add_row(
            answer.reference,
            version,
            f"{score:.4f}",
            Text(label, style="bold"),
            ", ".join(f"{name} {value:.4f}" for name, value in others[: SHOWN_LABELS - 1]),
        )
    return table


def answer_json(answer: Answer) -> dict[str, JsonValue]:
    """One answer in the shape of the server's `POST /v1/predict`."""
    if answer.error_code is not None:
        problem: JsonValue = {"code": answer.error_code, "detail": answer.error_message}
        return {"reference": answer.reference, "error": problem}
    return {
        "reference": answer.reference,
        "version": answer.version,
        "outputs": [{"label": label, "score": score} for label, score in answer.scores],
    }
