"""Arguments to wire format: inputs, parameters and references. Pure functions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from pydantic import JsonValue

from nunatak_client.errors import InvalidInputError

TextInput = str | tuple[str, str]
"""A text, or a pair of texts."""

Inputs = TextInput | Sequence[TextInput]
"""One input, or a list of inputs. A tuple is always one pair; several inputs are a list."""


class FunctionToApply(StrEnum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireInputs:
    """Inputs in wire format; `num_inputs` is `None` for one input that is not in a list."""

    value: JsonValue
    num_inputs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a task reference lies: its path, and the version to ask for in the query."""

    path: str
    query: dict[str, str]


def wire_inputs(inputs: Inputs) -> WireInputs:
    """Write one input or a list of inputs as JSON.

    Raises:
        InvalidInputError: not a text, not a pair, or an empty list.
    """
    if isinstance(inputs, str | tuple):
        return WireInputs(value=_wire_input(inputs), num_inputs=None)
    items = [_wire_input(item) for item in inputs]
    if not items:
        raise InvalidInputError("inputs must hold at least one text, got an empty list")
    return WireInputs(value=items, num_inputs=len(items))


def predict_body(
    inputs: WireInputs,
    *,
    tasks: Sequence[str] | None = None,
    top_k: int | None = None,
    function_to_apply: FunctionToApply | str | None = None,
) -> bytes:
    """Write the body of a predict request; `tasks` makes it a fan-out."""
    body: dict[str, JsonValue] = {"inputs": inputs.value}
    if tasks is not None:
        body["tasks"] = list(tasks)
    parameters: dict[str, JsonValue] = {}
    if top_k is not None:
        parameters["top_k"] = top_k
    if function_to_apply is not None:
        parameters["function_to_apply"] = str(function_to_apply)
    if parameters:
        body["parameters"] = parameters
    return json_body(body)


def json_body(body: dict[str, JsonValue]) -> bytes:
    """Write a JSON object as UTF-8.

    Raises:
        InvalidInputError: a text holds half of a surrogate pair, which no encoding can carry.
    """
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"texts must be valid Unicode, got a lone surrogate at {error.start}; "
            "decode the source with errors='replace'"
        ) from error


def task_target(reference: str) -> Target:
    """Find the path of `name`, `name@alias` or `name/3`.

    The server owns the grammar of names. Refused here is only what would change the path itself.

    Raises:
        InvalidInputError: an empty name, or one of dots alone.
    """
    name, slash, version = reference.partition("/")
    return Target(
        path=f"/v1/tasks/{path_segment('task reference', name)}",
        query={"version": version} if slash else {},
    )


def path_segment(kind: str, value: str) -> str:
    """Quote one segment of a path, so that it stays one segment."""
    if not value.strip("."):
        raise InvalidInputError(
            f"{kind} must be a name such as 'tone', 'tone@prod' or 'tone/3', got {value!r}"
        )
    return quote(value, safe="@", errors="replace")


def _wire_input(item: object) -> JsonValue:
    match item:
        case str():
            return item
        case tuple((str() as text, str() as text_pair)):
            return {"text": text, "text_pair": text_pair}
        case _:
            raise InvalidInputError(
                "an input must be a text or a pair (text, text_pair), "
                f"got {_shape(item)}; pass several inputs as a list"
            )


def _shape(item: object) -> str:
    if isinstance(item, Sequence):
        return f"{type(item).__name__} of {len(item)}"  # pyright: ignore[reportUnknownArgumentType]
    return type(item).__name__
