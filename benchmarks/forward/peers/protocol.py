"""The protocol of a peer that runs in its own virtual environment.

The peer starts with a folder that holds a job. The peer reads one JSON object per line, and answers
`{"do": "answer", "case": ...}` with `{"logits": [[...]]}`, and `{"do": "time", "case": ...}` with
`{"seconds": ...}`. The peer waits between requests, so that processes take turns.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

REPEATS = 3
"""Runs per round. The median of the runs counts, as in races within one process."""

Answer = Callable[[], list[list[float]]]


def serve(cases: Mapping[str, Callable[[], object]], logits: Mapping[str, Answer]) -> None:
    """Answer requests until the input ends.

    Args:
        cases: the timed functions, by name.
        logits: the same functions with their logits in the order of the requests, by name.
    """
    # Libraries print to standard output, but only answers may reach the other process.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        case = request["case"]
        if request["do"] == "time":
            _reply(replies, {"seconds": _seconds(cases[case])})
        else:
            _reply(replies, {"logits": logits[case]()})


def _reply(replies: TextIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _seconds(run: Callable[[], object]) -> float:
    samples = list[float]()
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)
