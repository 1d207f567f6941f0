"""Ray Serve, multiplexed: one deployment, one full model per task, kept in the replica."""
# pyrefly: ignore-errors
# Ray has its own environment here.

import logging
import time

import ray
import torch
from answering import READY, options
from ray import serve
from starlette.requests import Request
from transformers import AutoModelForSequenceClassification, AutoTokenizer

READ = options()
FOLDERS = {folder.name: str(folder) for folder in READ.tasks}


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Models:
    """A replica that keeps every model that a request has used."""

    def __init__(self, folders: dict[str, str]) -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        self.folders = folders
        self.tokenizer = AutoTokenizer.from_pretrained(next(iter(folders.values())))

    @serve.multiplexed(max_num_models_per_replica=len(FOLDERS))
    async def get_model(self, model_id: str):  # noqa: ANN201
        return AutoModelForSequenceClassification.from_pretrained(self.folders[model_id]).eval()

    async def __call__(self, request: Request) -> dict:
        question = await request.json()
        torch.set_grad_enabled(False)
        inputs = self.tokenizer(
            question["text"], return_tensors="pt", truncation=True, max_length=130
        )
        results = []
        for task in question["tasks"]:
            model = await self.get_model(task)
            results.append(model(**inputs).logits[0].softmax(-1).tolist())
        return {"results": results}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
    serve.start(http_options={"host": "127.0.0.1", "port": READ.port})
    # `Models` is a deployment here, because of the decorator.
    serve.run(Models.bind(FOLDERS), route_prefix="/predict", blocking=False)  # pyrefly: ignore[missing-attribute]
    print(f"{READY}http://127.0.0.1:{READ.port}", flush=True)
    while True:
        time.sleep(3600)
