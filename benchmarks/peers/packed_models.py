"""One process with one full transformers model per task, whose linear layers are packed by oneDNN.

This is the architecture of encoder runtimes that share nothing between models: every model has a
scheduler of its own, one forward uses all cores, and the forwards of the models take turns. A
forward answers the oldest waiting rows of its model, up to 8, padded to the longest of them.
"""
# pyrefly: ignore-errors

import threading
from concurrent.futures import Future
from queue import SimpleQueue

import torch
from answering import Question, options, serve
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

MOST_ROWS = 8
MIN_ELEMENTS = 2**17
"""Smaller weights stay plain, because the call of oneDNN costs more than their product."""
TURN = threading.Lock()
Row = tuple[list[int], Future]


class PackedLinear(nn.Module):
    """A linear layer whose weight is in the layout of oneDNN's products."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)  # noqa: SLF001
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # noqa: SLF001


class Scheduler:
    """The model of one task, and the rows that wait for it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.waiting = model, SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, ids: list[int]) -> Future:
        answer: Future = Future()
        self.waiting.put((ids, answer))
        return answer

    def _run(self) -> None:
        while True:
            rows = [self.waiting.get()]
            with TURN, torch.inference_mode():
                while len(rows) < MOST_ROWS and not self.waiting.empty():
                    rows.append(self.waiting.get())
                try:
                    found = self._forward([ids for ids, _ in rows])
                except Exception as error:  # noqa: BLE001 - the callers get the error
                    for _, answer in rows:
                        answer.set_exception(error)
                    continue
            for (_, answer), probabilities in zip(rows, found, strict=True):
                answer.set_result(probabilities)

    def _forward(self, rows: list[list[int]]) -> list[list[float]]:
        if len(rows) == 1:
            return self.model(input_ids=torch.tensor(rows)).logits.float().softmax(-1).tolist()
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        logits = self.model(input_ids=ids, attention_mask=mask).logits
        return logits.float().softmax(-1).tolist()


def pack(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and child.weight.numel() >= MIN_ELEMENTS:
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)


def main() -> None:
    read = options()
    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(read.tasks[0])
    schedulers = dict[str, Scheduler]()
    for folder in read.tasks:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        pack(model)
        schedulers[folder.name] = Scheduler(model)

    def answer(question: Question) -> list[list[float]]:
        ids = tokenizer(question.text, truncation=True, max_length=130)["input_ids"]
        waiting = [schedulers[task].ask(ids) for task in question.tasks]
        return [it.result() for it in waiting]

    serve(answer, read.port)


if __name__ == "__main__":
    main()
