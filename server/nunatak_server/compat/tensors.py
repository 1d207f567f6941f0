"""Tensors of the Open Inference Protocol: the inputs and outputs of tasks, as named columns.

Text is BYTES, element after element. Each kind of head has one form of output:

    head                     reads                     answers, for n inputs
    sequence classification  text, text_pair if pairs  label [n, k], score [n, k], best first
    token classification     text                      entities [n]: each a JSON list
    question answering       question, context         answer, score, start, end, each [n]
    ranking                  query [1], documents [n]  score [n], in the order of the documents

The schema describes the tensors and parameters of requests. The route refuses other tensors and
parameters, and names the possible ones.

A binary tensor is a run of bytes after the JSON part of a body. FP32 and INT64 are little-endian.
An element of BYTES is its length as four bytes, little-endian, and its UTF-8 bytes.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Final, cast

import orjson
from pydantic import WithJsonSchema

from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.requests import MAX_ITEMS, Input, Parameters, Query, Question
from nunatak_server.errors import invalid_request
from nunatak_server.outputs.entities import AnswerScore
from nunatak_server.outputs.outputs import Output

Columns = Mapping[str, Sequence[str]]

TEXT_PARAMETERS: Final = frozenset(
    {"top_k", "function_to_apply", "aggregation_strategy", "on_long", "stride"}
)
PARAMETERS: Final[Mapping[frozenset[str], frozenset[str]]] = {
    frozenset({"text"}): TEXT_PARAMETERS,
    frozenset({"text", "text_pair"}): TEXT_PARAMETERS,
    frozenset({"question", "context"}): frozenset(
        {"max_answer_len", "handle_impossible_answer", "align_to_words", "doc_stride"}
    ),
    frozenset({"query", "documents"}): frozenset({"function_to_apply", "on_long"}),
}
"""The possible combinations of tensors, and the parameters that keep the form of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A named tensor, with its data row after row; the request decides an extent of -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: tuple[Any, ...] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.metadata, "data": list(self.data)}

    @property
    def raw(self) -> bytes:
        if self.datatype == "BYTES":
            encoded = (text.encode() for text in self.data)
            return b"".join(LENGTH.pack(len(it)) + it for it in encoded)
        return struct.pack(f"<{len(self.data)}{NUMBERS[self.datatype]}", *self.data)


LENGTH: Final = struct.Struct("<I")
NUMBERS: Final[Mapping[str, str]] = {"FP32": "f", "INT64": "q"}
"""The codes of `struct` for the elements of tensors."""


def with_binary_data(parsed: object, rest: bytes) -> object:
    """Give the binary input tensors of a request their data, from the bytes after the JSON part.

    The schema checks the result, so values of wrong types are left to the schema.
    """
    place = 0
    for tensor in _dicts_in(parsed, "inputs"):
        parameters = tensor.get("parameters")
        if not isinstance(parameters, dict) or SIZE not in parameters:
            continue
        size: object = cast("dict[str, object]", parameters).pop(SIZE)
        # True is an int in Python, and no size.
        if type(size) is not int or not 0 <= size <= len(rest) - place or "data" in tensor:
            raise invalid_request(
                f"a binary tensor has no data, and a {SIZE} of at most the bytes that "
                "follow the JSON part"
            )
        tensor["data"] = _texts_in(rest[place : place + size])
        place += size
    if place < len(rest):
        raise invalid_request(
            f"{len(rest)} bytes follow the JSON part, and its binary tensors have {place}"
        )
    return parsed


def _dicts_in(parsed: object, name: str) -> list[dict[str, Any]]:
    listed = cast("dict[str, Any]", parsed).get(name) if isinstance(parsed, dict) else None
    found = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [it for it in found if isinstance(it, dict)]


def _texts_in(raw: bytes) -> list[str]:
    texts = list[str]()
    place = 0
    while place < len(raw) and len(texts) <= MAX_ITEMS:
        start = place + LENGTH.size
        size = LENGTH.unpack_from(raw, place)[0] if start <= len(raw) else len(raw)
        place = start + size
        if place > len(raw):
            raise invalid_request("an element of a binary tensor is longer than the tensor")
        try:
            texts.append(raw[start:place].decode())
        except UnicodeDecodeError:
            raise invalid_request("the elements of a binary tensor must be UTF-8") from None
    return texts


def inputs_in(columns: Columns) -> tuple[Input, ...]:
    if frozenset(columns) not in PARAMETERS:
        known = "; ".join(" and ".join(sorted(names)) for names in PARAMETERS)
        raise invalid_request(f"inputs must be the tensors {known}; see the task's metadata")
    if "documents" in columns:
        if len(columns["query"]) != 1:
            raise invalid_request("query must have one element; send a request per query")
        return (Query(query=columns["query"][0], documents=tuple(columns["documents"])),)
    if len({len(column) for column in columns.values()}) > 1:
        raise invalid_request("all input tensors must have as many elements")
    if "question" in columns:
        both = zip(columns["question"], columns["context"], strict=True)
        return tuple(Question(question=question, context=context) for question, context in both)
    if "text_pair" in columns:
        return tuple(zip(columns["text"], columns["text_pair"], strict=True))
    return tuple(columns["text"])


def input_metadata(kind: HeadKind, reads: Reads | None) -> list[dict[str, Any]]:
    """Say what a task reads; without `reads`, the second text of a pair may be left out."""
    names = ("text",) if reads is Reads.SINGLE else INPUTS[kind]
    shapes = {it: (1,) if it == "query" else (-1,) for it in names}
    return [Tensor(name=it, datatype="BYTES", shape=shapes[it]).metadata for it in names]


INPUTS: Final[Mapping[HeadKind, Sequence[str]]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: ("text", "text_pair"),
    HeadKind.TOKEN_CLASSIFICATION: ("text",),
    HeadKind.QUESTION_ANSWERING: ("question", "context"),
    HeadKind.RANKING: ("query", "documents"),
}
OUTPUTS: Final[Mapping[HeadKind, Mapping[str, str]]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: {"label": "BYTES", "score": "FP32"},
    HeadKind.TOKEN_CLASSIFICATION: {"entities": "BYTES"},
    HeadKind.QUESTION_ANSWERING: {
        "answer": "BYTES",
        "score": "FP32",
        "start": "INT64",
        "end": "INT64",
    },
    HeadKind.RANKING: {"score": "FP32"},
}
"""The tensors of answers, with the types of their elements."""
NOTHING: Final = AnswerScore(answer="", score=0.0, start=0, end=0)
"""The answer of a context without any words."""


def output_metadata(kind: HeadKind, num_labels: int) -> list[dict[str, Any]]:
    shape = (-1, num_labels) if kind is HeadKind.SEQUENCE_CLASSIFICATION else (-1,)
    return [
        Tensor(name=name, datatype=it, shape=shape).metadata for name, it in OUTPUTS[kind].items()
    ]


def output_tensors(kind: HeadKind, outputs: Sequence[Output]) -> list[Tensor]:
    rows = cast("Sequence[list[Mapping[str, Any]]]", outputs)
    shape: tuple[int, ...] = (len(rows),)
    found: Sequence[Mapping[str, object]]
    match kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            found, shape = list(chain.from_iterable(rows)), (*shape, len(rows[0]))
        case HeadKind.TOKEN_CLASSIFICATION:
            found = [{"entities": orjson.dumps(it).decode()} for it in rows]
        case HeadKind.QUESTION_ANSWERING:
            found = [row[0] if row else NOTHING for row in rows]
        case HeadKind.RANKING:
            found = sorted(rows[0], key=itemgetter("index"))
            shape = (len(found),)
    return [
        Tensor(name=name, datatype=kind_of, shape=shape, data=tuple(it[name] for it in found))
        for name, kind_of in OUTPUTS[kind].items()
    ]


Scalar = bool | int | float | str
BINARY: Final = "binary_data"
"""The parameter of a tensor that asks for binary data. Input tensors are never asked."""
ALL_BINARY: Final = "binary_data_output"
"""The parameter of a request that asks for binary data in all outputs."""
SIZE: Final = "binary_data_size"


def _one_of(names: Iterable[str]) -> WithJsonSchema:
    # Each schema once, in the order of first use.
    return WithJsonSchema({"type": "string", "enum": list(dict.fromkeys(names))})


def _parameters(names: Iterable[str], **more: dict[str, Any]) -> WithJsonSchema:
    whole = Parameters.model_json_schema()
    properties = {name: _plain(whole["properties"][name], whole["$defs"]) for name in sorted(names)}
    return WithJsonSchema(
        {"type": "object", "properties": properties | more, "additionalProperties": False}
    )


def _plain(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references and null, because parameters are scalars."""
    (chosen,) = (one for one in schema.get("anyOf", [schema]) if one != {"type": "null"})
    named = chosen.get("$ref")
    return chosen if named is None else definitions[named.rpartition("/")[2]]


BOOLEAN: Final = {"type": "boolean"}
InputName = Annotated[str, _one_of(name for names in PARAMETERS for name in sorted(names))]
OutputName = Annotated[str, _one_of(chain.from_iterable(OUTPUTS.values()))]
RequestParameters = Annotated[
    dict[str, Scalar],
    _parameters(frozenset[str]().union(*PARAMETERS.values()), binary_data_output=BOOLEAN),
]
"""The tensors decide which parameters have an effect."""
InputParameters = Annotated[
    dict[str, Scalar], _parameters((), binary_data=BOOLEAN | {"const": False})
]
OutputParameters = Annotated[dict[str, Scalar], _parameters((), binary_data=BOOLEAN)]
