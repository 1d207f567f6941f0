"""Imported tasks, served: the server answers as transformers does."""

from pathlib import Path

import httpx
import pytest
import torch

from doubles.backbones import Family
from doubles.checkpoints import save_checkpoint
from doubles.published import Twin, TwinFactory
from doubles.serving import running_client
from doubles.tasks import CREATED_AT
from nunatak_contract.methods import Full, HeadOnly, Method, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.importing import draft_imported, import_folder
from nunatak_registry import Registry

TEXTS = ["where is my parcel?", "a", "it is late, and nobody has written to me."]
METHODS: dict[str, Method] = {"head": HeadOnly(), "topk": TopK(num_layers=2), "full": Full()}


@pytest.mark.parametrize("family", ["bert", "roberta"])
async def test_fan_out_over_imported_tasks_answers_as_transformers_does(
    family: Family, tmp_path: Path
) -> None:
    factory = TwinFactory(tmp_path / "backbone", family=family)
    backbone = factory.backbone

    async def ask(registry: Registry) -> httpx.Response:
        async with running_client(backbone, registry) as client:
            return await client.post("/v1/predict", json={"inputs": TEXTS, "tasks": [*METHODS]})

    twins = dict[str, Twin]()
    with Registry.open(tmp_path / "registry") as registry:
        for name, method in METHODS.items():
            twins[name] = save_checkpoint(factory, tmp_path / name, method=method)
            imported = import_folder(Checkpoint(tmp_path / name), backbone)
            draft = draft_imported(name, imported, backbone, origin=name, created_at=CREATED_AT)
            registry.publish(draft.manifest, draft.blobs)
        answer = await ask(registry)

    assert answer.status_code == 200
    encodings = backbone.tokenizer.encode(TEXTS, max_length=40)
    for result in answer.json()["results"]:
        twin = twins[result["task"]]
        for scores, encoding in zip(result["outputs"], encodings, strict=True):
            by_label = {item["label"]: item["score"] for item in scores}
            actual = torch.tensor([by_label[f"label {index}"] for index in range(3)])
            expected = twin.expected(encoding).softmax(dim=-1)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
