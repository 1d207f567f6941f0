"""Models of transformers: the reference for every folder that is read here.

A model is made from `config.json` and from tensors that were read before. So transformers opens no
file, runs no code of the folder and reads no pickle. Its answers to a few texts decide whether the
answers here are exact.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from nunatak_contract.enums import HeadKind
from nunatak_contract.errors import needs_extra
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    HeadSpec,
    Row,
    TextInput,
    embedding_branch,
    forward,
)
from nunatak_model.tokenizer_folder import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

TOLERANCE: Final = 1e-4
"""Largest difference of an answer, as a part of the largest answer."""
PROBE_INPUTS: Final[tuple[TextInput, ...]] = (
    "Thanks!",
    "Where is my parcel? It was due on Monday.",
    ("Who wrote the report?", "The report was written by Ada Lovelace in London in 1843."),
    "Third reminder: 3 of the 12 invoices (7, 9 and 11) are still open! Please call back at once.",
)
"""Two short texts, a pair and a longer text, because foreign folders bring no examples."""
LONG_TEXT: Final = " ".join(
    f"Line {number} of a long letter about parcels." for number in range(90)
)
"""A text that is longer than the window of every local layer, and than many backbones read."""
MAX_TOKENS: Final = 640
"""Tokens of the long text that are compared, to spare memory."""
MAX_LABELS: Final = 100_000
OWN_CODE: Final = frozenset(
    {"auto_map", "attn_implementation", "experts_implementation", "fusion_config"}
)
"""Settings that may make transformers fetch code. Settings with an underscore are left out, too."""
OF_FORM = frozenset({"model_type", "return_dict", "torchscript", "chunk_size_feed_forward"})
"""Settings that change the form of the answers, or the order of the work, and no number."""


def config_of(checkpoint: Checkpoint, raw: Mapping[str, JsonValue]) -> "PreTrainedConfig":
    with needs_extra("training"):
        from transformers import AutoConfig  # noqa: PLC0415 - takes seconds
    if raw.get("quantization_config"):
        raise checkpoint.refuse(
            "its weights are quantized (quantization_config)",
            "take the model before it was quantized",
        )
    check_num_labels(checkpoint, raw)
    fields = {
        name: value
        for name, value in raw.items()
        if not name.startswith("_") and name not in OF_FORM | OWN_CODE
    }
    with checkpoint.refused_by("transformers", "read its config.json"):
        return AutoConfig.for_model(
            str(raw.get("model_type")), **fields, attn_implementation="eager"
        )


def check_num_labels(checkpoint: Checkpoint, raw: Mapping[str, JsonValue]) -> None:
    """Refuse a `config.json` with more labels than any model has: transformers names each."""
    labels = raw.get("num_labels")
    if isinstance(labels, int | float) and labels > MAX_LABELS:
        raise checkpoint.refuse(
            f"its config.json has num_labels={labels:.6g}", f"at most {MAX_LABELS} are read"
        )


def class_named(checkpoint: Checkpoint, name: str) -> "type[PreTrainedModel]":
    with needs_extra("training"):
        transformers = importlib.import_module("transformers")
    found = getattr(transformers, name, None)
    if found is None:
        raise checkpoint.refuse(
            f"it is a {name}, a class that the installed transformers does not have",
            "train it as a class that transformers has",
        )
    return cast("type[PreTrainedModel]", found)


def encoder_class(config: "PreTrainedConfig") -> "type[PreTrainedModel]":
    from transformers import MODEL_MAPPING  # noqa: PLC0415 - takes seconds

    return cast("type[PreTrainedModel]", MODEL_MAPPING[type(config)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model of transformers in float32, and the names that did not fit."""

    model: "PreTrainedModel"
    missing: frozenset[str]
    """Tensors of the model that were not given; they are random."""
    unread: frozenset[str]
    """Tensors that were given, but that the model does not have."""
    misshapen: tuple[str, ...]


def load_model(
    checkpoint: Checkpoint,
    model_class: "type[PreTrainedModel]",
    config: "PreTrainedConfig",
    tensors: Mapping[str, Tensor],
) -> Loaded:
    # The model must not hold the given tensors themselves: they may belong to a backbone.
    copies = {name: it.to("cpu", torch.float32, copy=True) for name, it in tensors.items()}
    with checkpoint.refused_by("transformers", "make a model of it"), quiet():
        model, found = cast(
            "tuple[PreTrainedModel, dict[str, Any]]",
            model_class.from_pretrained(
                None,
                config=config,
                state_dict=copies,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            ),
        )
    return Loaded(
        model=model.eval(),
        missing=frozenset(found["missing_keys"]),
        unread=frozenset(found["unexpected_keys"]),
        misshapen=tuple(
            f"{name} is {list(given)}, expected {list(wanted)}"
            for name, given, wanted in sorted(found["mismatched_keys"])
        ),
    )


def answers_of(model: nn.Module, backbone: Backbone) -> list[tuple[Encoding, Tensor]]:
    """The inputs on which answers are compared, each alone with its logits or its vectors.

    The last input is as long as the backbone reads.
    """
    most = min(backbone.config.max_tokens, MAX_TOKENS)
    encodings = backbone.tokenizer.encode([*PROBE_INPUTS, LONG_TEXT], max_length=most)
    reads_types = "token_type_ids" in signature(model.forward).parameters
    with torch.inference_mode(), quiet():
        return [(it, _answer(model, it, reads_types=reads_types)) for it in encodings]


def _answer(model: nn.Module, encoding: Encoding, *, reads_types: bool) -> Tensor:
    inputs = {
        "input_ids": torch.tensor([encoding.token_ids]),
        "attention_mask": torch.ones(1, encoding.num_tokens, dtype=torch.long),
    }
    if reads_types:
        inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
    output = model(**inputs)
    if "start_logits" in output:
        return torch.stack([output["start_logits"][0], output["end_logits"][0]], dim=-1)
    return cast("Tensor", output["logits" if "logits" in output else "last_hidden_state"][0])


def vector_branch(backbone: Backbone) -> Branch:
    pooled = embedding_branch(backbone)
    head = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=backbone.config.hidden_width)
    return replace(
        pooled, spec=replace(pooled.spec, head=head), head=replace(pooled.head, pooling=None)
    )


def check_answers(
    checkpoint: Checkpoint,
    branch: Branch,
    backbone: Backbone,
    expected: Sequence[tuple[Encoding, Tensor]],
) -> float:
    """Refuse a model whose answers here are not those of its own library.

    Return the largest difference, as a part of the largest answer.
    """
    with torch.inference_mode():
        found = forward(backbone, [Row(encoding=it, branch=branch) for it, _ in expected])
    pairs = [(ours.cpu(), theirs) for ours, (_, theirs) in zip(found, expected, strict=True)]
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    if not all(bool(torch.isfinite(theirs).all()) for _, theirs in pairs):
        raise checkpoint.refuse(
            "its answers in its own library are no finite numbers",
            "its weights are damaged; take a file with finite weights",
        )
    # A NaN must not pass for a small number.
    is_finite = all(bool(torch.isfinite(ours).all()) for ours, _ in pairs)
    errors = [float((ours - theirs).abs().max()) for ours, theirs in pairs]
    difference = max(errors) / max(largest, 1e-2) if is_finite else float("nan")
    if not difference <= TOLERANCE:
        raise checkpoint.refuse(
            f"its answers here differ from the answers in its own library by {difference:.1e}"
            f" of their size (at most {TOLERANCE:g} is accepted)",
            "its config.json asks for a computation that is not available here; report it "
            "with this file",
        )
    return difference
