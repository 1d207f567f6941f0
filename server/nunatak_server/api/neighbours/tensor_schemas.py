"""What requests of the Open Inference Protocol may say of tensors, as far as a schema can tell.

Only described here: what is outside is refused by the route, which says what may be there instead.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import WithJsonSchema

from nunatak_registry import HeadKind
from nunatak_server.api.neighbours.tensors import PARAMETERS, output_metadata
from nunatak_server.api.questions import Parameters

Scalar = bool | int | float | str
BINARY: Final = frozenset({"binary_data", "binary_data_output", "binary_data_size"})
"""Parameters of the extension that is not offered: all that they may say is no."""


def _one_of(names: Iterable[str]) -> WithJsonSchema:
    # Once each, in the order in which they are met.
    return WithJsonSchema({"type": "string", "enum": list(dict.fromkeys(names))})


def _parameters(names: Iterable[str]) -> WithJsonSchema:
    refusals = {name: {"type": "boolean", "const": False} for name in sorted(BINARY)}
    whole = Parameters.model_json_schema()
    properties = {name: _plain(whole["properties"][name], whole["$defs"]) for name in sorted(names)}
    return WithJsonSchema(
        {"type": "object", "properties": properties | refusals, "additionalProperties": False}
    )


def _plain(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that refers to no other and has no null, for parameters are scalars."""
    (chosen,) = (one for one in schema.get("anyOf", [schema]) if one != {"type": "null"})
    named = chosen.get("$ref")
    return chosen if named is None else definitions[named.rpartition("/")[2]]


InputName = Annotated[str, _one_of(name for names in PARAMETERS for name in sorted(names))]
OutputName = Annotated[
    str, _one_of(tensor["name"] for kind in HeadKind for tensor in output_metadata(kind, 1))
]
RequestParameters = Annotated[
    dict[str, Scalar], _parameters(frozenset[str]().union(*PARAMETERS.values()))
]
"""Which of them are heeded depends on the tensors that come with them."""
TensorParameters = Annotated[dict[str, Scalar], _parameters(())]
