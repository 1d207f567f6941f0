"""One onnxruntime session per task, in a process without torch; a lock runs one at a time.

`onnx_export.py` wrote the models into the folder of each task before; the mode names the file.
"""
# pyrefly: ignore-errors
# onnxruntime is not installed where the project is checked.

import os
import threading
from pathlib import Path

import numpy as np
import onnxruntime
from answering import Question, options, serve
from tokenizers import Tokenizer

LOCK = threading.Lock()


def main() -> None:
    read = options()
    tokenizer = Tokenizer.from_file(str(read.tasks[0] / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(130)
    threads = int(os.environ["OMP_NUM_THREADS"])
    sessions = {it.name: session_of(it / read.mode, threads) for it in read.tasks}

    def answer(question: Question) -> list[list[float]]:
        ids = np.array([tokenizer.encode(question.text).ids])
        with LOCK:
            found = [sessions[task].run(None, {"input_ids": ids})[0][0] for task in question.tasks]
        return [probabilities(logits) for logits in found]

    serve(answer, read.port)


def session_of(file: Path, num_threads: int) -> onnxruntime.InferenceSession:
    """Return a session with every optimization.

    Its threads do not spin between runs, or they would take the cores of other sessions.
    """
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = num_threads
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])


def probabilities(logits: np.ndarray) -> list[float]:
    powers = np.exp(logits - logits.max())
    return (powers / powers.sum()).tolist()


if __name__ == "__main__":
    main()
