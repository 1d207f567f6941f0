"""The messages of vLLM semantic-router's runtime contract, and the cards of tasks as its models."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from nunatak_contract.enums import HeadKind, OnLong, ProblemType, Reads
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Message, Some, Text, TextPair
from nunatak_model import Backbone
from nunatak_server.compat.translation import ModelName, Texts
from nunatak_server.runtime import Runtime

API_VERSION: Final = "2.3.0"
MAX_BUNDLE_TASKS: Final = 64
OVERFLOWS: Final = {"reject": OnLong.REFUSE, "truncate": OnLong.CUT, "window": OnLong.WINDOWS}
KINDS: Final[Mapping[ProblemType, str]] = {
    ProblemType.SINGLE_LABEL: "sequence",
    ProblemType.MULTI_LABEL: "scores",
}
Items = Some[Text | TextPair]


class Options(Message):
    """Options of a surface request."""

    deadline_ms: Annotated[float, Field(gt=0, le=600_000)] | None = None
    profile: Literal["exact"] = "exact"
    return_meta: bool = False


class ClassifyOptions(Options):
    """Options of `classify`."""

    overflow: Literal["reject", "truncate", "window"] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="token heads: the least probability of a span"
    )
    return_tokens: Literal[False] = False


class ClassifyRequest(Message):
    """Texts, or pairs of texts, for the head of a model."""

    model: ModelName
    input: Text | Items
    head: str | None = None
    options: ClassifyOptions = ClassifyOptions.model_validate({})


class RerankOptions(Options):
    """Options of `rerank`."""

    overflow: Literal["reject", "truncate"] | None = None


class RerankRequest(Message):
    """A query, and the documents to score."""

    model: ModelName
    query: Text
    documents: Texts
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    options: RerankOptions = RerankOptions.model_validate({})


class TextPart(Message):
    """A text as a part of content. Images and sounds are refused."""

    type: Literal["text"]
    text: Text


class EmbeddingsOptions(Options):
    """Options of `embeddings`."""

    overflow: Literal["reject", "truncate"] | None = None


class EmbeddingsRequest(Message):
    """Texts for the backbone."""

    model: ModelName
    input: Text | Some[Text | TextPart]
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    layer: Annotated[int, Field(ge=1)] | None = None
    user: str | None = Field(None, description="no effect, as in the contract")
    options: EmbeddingsOptions = EmbeddingsOptions.model_validate({})


class BundleOptions(Message):
    """Options of all requests of a bundle."""

    deadline_ms: Annotated[float, Field(gt=0, le=600_000)] | None = None


class BundleTask(Message):
    """One request of a bundle: `classify`, `rerank` or `embeddings`."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    classify: ClassifyRequest | None = None
    rerank: RerankRequest | None = None
    embeddings: EmbeddingsRequest | None = None


class BundleRequest(Message):
    """Several requests, which share batches and the trunk."""

    tasks: Annotated[list[BundleTask], Field(min_length=1, max_length=MAX_BUNDLE_TASKS)]
    options: BundleOptions = BundleOptions.model_validate({})


def classify_kind(kind: HeadKind, problem_type: ProblemType | None) -> str | None:
    """Return the kind of head for `classify`; None if this surface cannot ask the head."""
    if kind is HeadKind.TOKEN_CLASSIFICATION:
        return "token"
    return KINDS.get(problem_type) if problem_type is not None else None


def is_served(manifest: TaskManifest) -> bool:
    head = manifest.head
    return head.kind is HeadKind.RANKING or bool(classify_kind(head.kind, head.problem_type))


def card_of(manifest: TaskManifest, runtime: Runtime) -> dict[str, Any]:
    config = runtime.backbones.of(manifest).config
    ranks = manifest.head.kind is HeadKind.RANKING
    limits = {
        "max_input_tokens": manifest.max_length,
        "max_inputs": runtime.settings.max_documents if ranks else runtime.settings.max_inputs,
    }
    surface = "rerank" if ranks else "classify"
    fields = _card(manifest.task, sha256=manifest.content, surface=surface, limits=limits)
    if ranks:
        whole = {"layer": config.num_layers, "dimension": config.hidden_width}
        return {**fields, "rerank": {"exits": [whole], "default": whole}}
    head = manifest.head
    kind = classify_kind(head.kind, head.problem_type)
    is_single = kind == "token" or manifest.reads is Reads.SINGLE
    both = ["pair"] if manifest.reads is Reads.PAIR else ["text", "pair"]
    long = {on_long: name for name, on_long in OVERFLOWS.items()}
    card: dict[str, Any] = {
        "name": manifest.task,
        "kind": kind,
        "labels": list(head.labels),
        "inputs": ["text"] if is_single else both,
        "overflow": "window" if kind == "token" else long[manifest.reads_long],
    }
    if kind == "scores":
        card["thresholds"] = [head.threshold(label) for label in head.labels]
    return {**fields, "heads": [card]}


def embedding_card(backbone: Backbone, runtime: Runtime) -> dict[str, Any]:
    limits = {
        "max_input_tokens": backbone.max_embedding_tokens,
        "max_inputs": runtime.settings.max_inputs,
    }
    space = {
        "dimensions": [backbone.config.hidden_width],
        "layers": [backbone.config.num_layers],
        "modalities": ["text"],
        "normalized": True,
        "pooling": backbone.pooling.value,
        "input_types": list[str](),
    }
    card = _card(backbone.name, sha256=backbone.digest, surface="embeddings", limits=limits)
    return {**card, "embedding": space}


def _card(name: str, *, sha256: str, surface: str, limits: dict[str, int]) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "owned_by": "nunatak",
        "family": "nunatak",
        "model_sha256": sha256,
        "surfaces": [surface],
        "limits": limits,
        "ready": True,
        "status": "ready",
    }
