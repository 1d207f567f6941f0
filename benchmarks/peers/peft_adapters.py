"""One base model with every task's LoRA adapter and head, by peft.

Mode `switch` sets the adapter under a lock for each request. Mode `mixed` gathers the waiting
requests into one padded batch and names each row's adapter (`adapter_names`), the fastest way that
peft offers.
"""
# pyrefly: ignore-errors

import queue
import threading
from concurrent.futures import Future
from typing import NamedTuple

import torch
from answering import Question, options, serve
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LOCK = threading.Lock()
MAX_ROWS = 32


class Waiting(NamedTuple):
    """A request that waits for a batch."""

    question: Question
    answer: Future[list[list[float]]]


def main() -> None:
    read = options()
    tokenizer = AutoTokenizer.from_pretrained(read.base)
    base = AutoModelForSequenceClassification.from_pretrained(read.base, num_labels=3)
    first, *others = read.tasks
    model = PeftModel.from_pretrained(base, first, adapter_name=first.name)
    for folder in others:
        model.load_adapter(folder, adapter_name=folder.name)
    model.eval()

    def switch(question: Question) -> list[list[float]]:
        inputs = tokenizer(question.text, return_tensors="pt", truncation=True, max_length=130)
        results = []
        with LOCK:
            for task in question.tasks:
                model.set_adapter(task)
                # `set_adapter` makes the adapter's parameters require gradients again.
                with torch.inference_mode():
                    results.append(model(**inputs).logits[0].softmax(-1).tolist())
        return results

    waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()

    def mixed(question: Question) -> list[list[float]]:
        answer: Future[list[list[float]]] = Future()
        waiting.put(Waiting(question, answer))
        return answer.result()

    def batches() -> None:
        while True:
            batch = take(waiting)
            rows = [(it.question.text, task) for it in batch for task in it.question.tasks]
            inputs = tokenizer(
                [text for text, _ in rows],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=130,
            )
            with torch.inference_mode():
                logits = model(**inputs, adapter_names=[task for _, task in rows]).logits
            given = iter(logits.softmax(-1).tolist())
            for it in batch:
                it.answer.set_result([next(given) for _ in it.question.tasks])

    threading.Thread(target=batches, daemon=True).start()
    serve({"mixed": mixed, "switch": switch}[read.mode], read.port)


def take(waiting: "queue.SimpleQueue[Waiting]") -> list[Waiting]:
    """Take waiting requests until they have `MAX_ROWS` rows or none is left; take at least one."""
    batch = [waiting.get()]
    while sum(len(it.question.tasks) for it in batch) < MAX_ROWS:
        try:
            batch.append(waiting.get_nowait())
        except queue.Empty:
            break
    return batch


if __name__ == "__main__":
    main()
