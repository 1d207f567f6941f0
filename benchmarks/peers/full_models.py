"""One process with one full transformers model per task; a lock runs one forward at a time.

The lock is no loss, because one forward of torch uses all cores. With one folder, the program is
the process of one task in "one process per task". Mode `private` copies the weights out of the
mapped file, as a cast or a move to a device does.
"""
# pyrefly: ignore-errors

import threading

import torch
from answering import Question, options, serve
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LOCK = threading.Lock()


def main() -> None:
    read = options()
    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(read.tasks[0])
    models = {}
    for folder in read.tasks:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        if read.mode == "private":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
        models[folder.name] = model

    def answer(question: Question) -> list[list[float]]:
        inputs = tokenizer(question.text, return_tensors="pt", truncation=True, max_length=130)
        # The grad mode belongs to a thread, and this is a thread of the pool.
        with LOCK, torch.inference_mode():
            return [
                models[task](**inputs).logits[0].softmax(-1).tolist() for task in question.tasks
            ]

    serve(answer, read.port)


if __name__ == "__main__":
    main()
