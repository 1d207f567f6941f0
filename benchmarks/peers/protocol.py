"""The peer's side of `worker.py`: a program that answers requests, one JSON object per line.

It answers `{"do": "answer", "case": ...}` with `{"logits": [[...]]}`, and `{"do": "time", "case":
...}` with `{"seconds": ...}`. It waits between requests, so that processes take turns. Times are
those of `rounds.seconds`, which this process cannot import.
"""

# pyrefly: ignore-errors
# The program runs in environments of peers.

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import torch
from torch import Tensor

REPEATS = 3
"""Runs per round. The median of the runs counts, as in races within one process."""


def serve(runs: Mapping[str, Callable[[], Tensor]]) -> None:
    """Answer requests until the input ends; a run gives logits [texts, labels]."""
    # Libraries print to standard output, but only answers may reach the other process.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        case = request["case"]
        if request["do"] == "time":
            _reply(replies, {"seconds": _seconds(runs[case])})
        else:
            _reply(replies, {"logits": runs[case]().float().tolist()})


def _reply(replies: TextIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _seconds(run: Callable[[], object]) -> float:
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    samples = list[float]()
    for _ in range(REPEATS):
        started = clock()
        run()
        samples.append(clock() - started)
    return statistics.median(samples)
