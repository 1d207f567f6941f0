"""LitServe with one full model per task: LitServe gathers batches, which run task by task."""
# pyrefly: ignore-errors
# LitServe has its own environment.

import litserve
import torch
from answering import READY, options
from transformers import AutoModelForSequenceClassification, AutoTokenizer

READ = options()


class Models(litserve.LitAPI):
    """Decodes, runs the rows of a batch grouped by task, and encodes."""

    def setup(self, device: str) -> None:
        torch.set_grad_enabled(False)
        self.tokenizer = AutoTokenizer.from_pretrained(READ.tasks[0])
        self.models = {
            folder.name: AutoModelForSequenceClassification.from_pretrained(folder).eval()
            for folder in READ.tasks
        }
        print(f"{READY}http://127.0.0.1:{READ.port}", flush=True)

    def decode_request(self, request: dict) -> dict:
        return request

    def batch(self, inputs: list[dict]) -> list[dict]:
        return inputs

    def predict(self, x: list[dict]) -> list[list[list[float]]]:
        """Run one forward per task of the batch, over all texts for this task."""
        texts: dict[str, list[tuple[int, int]]] = {}
        for row, request in enumerate(x):
            for place, task in enumerate(request["tasks"]):
                texts.setdefault(task, []).append((row, place))
        results: list[list[list[float]]] = [[[]] * len(request["tasks"]) for request in x]
        for task, places in texts.items():
            inputs = self.tokenizer(
                [x[row]["text"] for row, _ in places],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=130,
            )
            given = self.models[task](**inputs).logits.softmax(-1).tolist()
            for (row, place), probabilities in zip(places, given, strict=True):
                results[row][place] = probabilities
        return results

    def unbatch(self, output: list[list[list[float]]]) -> list[list[list[float]]]:
        return output

    def encode_response(self, output: list[list[float]]) -> dict:
        return {"results": output}


if __name__ == "__main__":
    server = litserve.LitServer(
        Models(max_batch_size=16, batch_timeout=0.005), accelerator="cpu", timeout=60
    )
    server.run(port=READ.port, host="127.0.0.1", log_level="error", generate_client_file=False)
