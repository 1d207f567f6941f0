"""Shared parts of the translators: common fields, calls and forms."""

import struct
from base64 import b64encode
from typing import Annotated, Any

from fastapi import Request
from pydantic import WithJsonSchema

from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Some, Text
from nunatak_model import Backbone
from nunatak_server.http.endpoints import catalog_of, reference_text, runtime_of
from nunatak_server.http.pages import WHOLE_REFERENCE
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.outputs.entities import Entity
from nunatak_server.predict.types import EmbeddingRequest, Embeddings, Handling

Texts = Some[Text]
ModelName = Annotated[str, WithJsonSchema(WHOLE_REFERENCE)]
"""The field that names a task: `name`, `name@alias` or `name/3`."""


async def find_task(request: Request, task: str, version: str | None) -> TaskManifest:
    """Return the manifest of the version that a path means."""
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    runtime_of(request).backbones.of(manifest)
    return manifest


async def embed_texts(
    request: Request,
    handling: Handling,
    texts: tuple[str, ...],
    *,
    truncates: bool = False,
    normalises: bool = True,
    backbone: Backbone | None = None,
) -> tuple[Embeddings, dict[str, str]]:
    """Embed texts with a backbone, or else the default backbone."""
    runtime = runtime_of(request)
    embeddings = await runtime.service.embed(
        EmbeddingRequest(
            inputs=texts,
            truncates=truncates,
            normalises=normalises,
            handling=handling,
            backbone=(backbone or runtime.backbone).digest,
        )
    )
    read = read_headers(embeddings.num_tokens, is_cut=embeddings.is_cut)
    return embeddings, {**timing_headers(embeddings.timings), **read}


def texts_of(texts: str | list[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def usage_of(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def span_of(entity: Entity, text: str) -> dict[str, Any]:
    start, end = entity["start"], entity["end"]
    label = entity["entity_group"] if "entity_group" in entity else entity["entity"]
    return {"label": label, "start": start, "end": end, "text": text[start:end]}


def base64_of(vector: list[float]) -> str:
    """Return a vector as base64 of little-endian float32."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
