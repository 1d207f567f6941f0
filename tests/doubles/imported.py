"""Folders of other libraries, imported and served over HTTP."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from doubles.serving import running_client
from doubles.tasks import CREATED_AT
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.importing import draft_imported, import_folder
from nunatak_model import Backbone
from nunatak_registry import Registry

NO_CHOICES = ImportChoices()


def answers(
    folder: Path,
    backbone: Backbone,
    inputs: object,
    *,
    choices: ImportChoices = NO_CHOICES,
    parameters: Mapping[str, object] | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """Return the server's answer to inputs once the folder is imported as a task."""

    async def ask(registry: Registry) -> Any:  # noqa: ANN401 - JSON
        async with running_client(backbone, registry) as client:
            # Long texts are cut, as the original libraries do.
            body = {"inputs": inputs, "parameters": {"on_long": "cut", **(parameters or {})}}
            answer = await client.post("/v1/tasks/it/predict", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["outputs"]

    imported = import_folder(Checkpoint(folder), backbone, choices=choices)
    draft = draft_imported("it", imported, backbone, origin="there", created_at=CREATED_AT)
    with tempfile.TemporaryDirectory() as scratch, Registry.open(Path(scratch)) as registry:
        registry.publish(draft.manifest, draft.blobs)
        return asyncio.run(ask(registry))


def check_scores(folder: Path, ours: Sequence[Sequence[Mapping[str, Any]]], texts: Any) -> None:  # noqa: ANN401 - texts or pairs
    """Compare answers to texts with those of transformers' pipeline on a folder."""
    theirs: Any = pipeline("text-classification", model=str(folder), top_k=None)
    for text, answer in zip(texts, ours, strict=True):
        expected = {it["label"]: it["score"] for it in theirs([text], truncation=True)[0]}
        scores = {it["label"]: it["score"] for it in answer}
        assert scores == pytest.approx(expected, abs=1e-5)
