"""One onnxruntime session per task, in a process without torch; a lock runs one at a time.

`onnx_export.py` wrote the models into the folder of each task before; the mode names the file.
"""
# pyrefly: ignore-errors
# onnxruntime is not installed where the project is checked.

import os
import threading

import numpy as np
import onnxruntime
from answering import Question, options, serve
from tokenizers import Tokenizer

LOCK = threading.Lock()


def main() -> None:
    """Start every task's session and serve."""
    read = options()
    tokenizer = Tokenizer.from_file(str(read.tasks[0] / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(130)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    # Threads that spin between runs would take the cores of the other sessions.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    sessions = {
        folder.name: onnxruntime.InferenceSession(
            str(folder / read.mode), settings, providers=["CPUExecutionProvider"]
        )
        for folder in read.tasks
    }

    def answer(question: Question) -> list[list[float]]:
        ids = np.array([tokenizer.encode(question.text).ids])
        with LOCK:
            found = [sessions[task].run(None, {"input_ids": ids})[0][0] for task in question.tasks]
        return [probabilities(logits) for logits in found]

    serve(answer, read.port)


def probabilities(logits: np.ndarray) -> list[float]:
    """Return the softmax of [labels]."""
    powers = np.exp(logits - logits.max())
    return (powers / powers.sum()).tolist()


if __name__ == "__main__":
    main()
