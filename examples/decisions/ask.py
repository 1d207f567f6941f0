"""Asks eight questions about each new ticket in one request, and counts the right answers."""

import argparse
import csv
import json
import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent


def said(answer: dict[str, Any]) -> str:
    """Return the likeliest answer, by the names that the file of tickets has."""
    match answer["type"]:
        case "predicate":
            return "yes" if answer["probability"] >= 0.5 else "no"
        case "choice":
            return answer["choice"]
        case "score":
            return max(answer["probabilities"], key=lambda it: it["probability"])["label"]
        case other:
            return other


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address", nargs="?", default="http://127.0.0.1:4000", help="of the gateway")
asked = parser.parse_args()
key = os.environ.get("LITELLM_MASTER_KEY")
questions = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
tickets = list(csv.DictReader((HERE / "new.csv").open(encoding="utf-8")))
right, sources, times = Counter[str](), dict[str, str](), list[float]()
headers = {"authorization": f"Bearer {key}"} if key else {}
with httpx.Client(base_url=asked.address, headers=headers, timeout=60) as client:
    for ticket in tickets:
        body = {"model": "nunatak", "input": ticket["text"], "questions": questions}
        try:
            reply = client.post("/v1/decisions", json=body).raise_for_status()
        except httpx.HTTPError as error:
            parser.error(f"no answer: {error}; the key of a gateway is LITELLM_MASTER_KEY")
        times.append(reply.elapsed.total_seconds())
        for answer in reply.json()["answers"]:
            name, source = answer["name"], answer.get("x_source")
            right[name] += said(answer) == ticket[name]
            # LiteLLM passes on OpenAI's fields alone, without the source.
            sources[name] = f", by {source['kind']}" if source else ""
for name, source in sources.items():
    print(f"{name}: {right[name]} of {len(tickets)} right{source}")
share = right.total() / (len(questions) * len(tickets))
print(f"all: {share:.1%} right, {1000 * statistics.median(times):.0f} ms a request")
