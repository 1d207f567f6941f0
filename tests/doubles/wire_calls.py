"""Every call of the client that asks over HTTP, in an order that a fresh server answers.

As a program it is given a server's address, and writes the refusals. It imports the client alone,
so the client of an older release can run it.
"""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from nunatak_client import ApiError, CandidateRole, Client, Query, Question

TEXT = "Where is my parcel?"
ASKED = Question(question="Who answers?", context="Nobody has answered my letters.")
SOUGHT = Query(query="parcel", documents=["Where is my parcel?", "Thank you."])
CALLS: dict[str, Callable[[Client], Any]] = {
    "is_ready": lambda it: it.is_ready(),
    "info": lambda it: it.info(),
    "tasks": lambda it: it.tasks(),
    "task": lambda it: it.task("tone@prod"),
    "predict": lambda it: it.predict("tone", TEXT),
    "predict with options": lambda it: it.predict(
        "tone/2", [TEXT, "two"], top_k=1, function_to_apply="sigmoid", deadline_s=60
    ),
    "predict for one version": lambda it: it.predict("tone", TEXT, routing_key="caller"),
    "predict a pair": lambda it: it.predict("tone", (TEXT, "two")),
    "predict tokens": lambda it: it.predict("names", TEXT),
    "predict an answer": lambda it: it.predict("answers", ASKED),
    "predict a ranking": lambda it: it.predict("ranks", SOUGHT),
    "predict_many": lambda it: it.predict_many([TEXT], ["tone", "nothing"]),
    "predict_all": lambda it: list(it.predict_all([TEXT, "two"], ["tone"])),
    "stream": lambda it: list(it.stream([TEXT], ["tone", "nothing"])),
    "preload": lambda it: it.preload("tone/2"),
    "pin": lambda it: it.pin("names"),
    "memory": lambda it: it.memory(),
    "unpin": lambda it: it.unpin("names"),
    "evict": lambda it: it.evict("names"),
    "set_shadow": lambda it: it.set_shadow("tone", 2, 0.5),
    "shadow_report": lambda it: it.shadow_report("tone"),
    "end_candidate": lambda it: it.end_candidate("tone", CandidateRole.SHADOW),
    "set_canary": lambda it: it.set_canary("tone", 2, 0.5, expected_version=0),
    "end the canary": lambda it: it.end_candidate("tone", CandidateRole.CANARY),
    "promote": lambda it: it.promote("tone", "prod", 2, expected_version=1),
    "rollback": lambda it: it.rollback("tone", "prod"),
    "no task": lambda it: it.predict("nothing", TEXT),
    "no text": lambda it: it.predict("tone", " "),
    "no such alias": lambda it: it.predict("tone@nothing", TEXT),
    "another version": lambda it: it.rollback("tone", "prod", expected_version=7),
    "no head for it": lambda it: it.predict("tone", ASKED),
}


def outcome(call: Callable[[Client], Any], client: Client) -> tuple[Any, str | None]:
    """Return the result of a call and None, or None and the code of the refusal."""
    try:
        return call(client), None
    except ApiError as error:
        return None, error.code


def main() -> None:
    """Ask a server everything, and write the codes of the refusals as JSON."""
    with closing(Client(sys.argv[1])) as client:
        print(json.dumps({name: outcome(call, client)[1] for name, call in CALLS.items()}))  # noqa: T201


if __name__ == "__main__":
    main()
