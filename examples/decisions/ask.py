"""Asks eight questions about each new ticket in one request, and counts the right answers."""

import csv
import json
from collections import Counter
from pathlib import Path

import httpx

HERE = Path(__file__).parent
QUESTIONS = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))


def said(name: str, answer: dict[str, object]) -> object:
    """Return the likeliest answer, by the names that the file of tickets has."""
    if "noul" in answer:
        return "yes" if answer["noul"] >= 0.5 else "no"
    if "choice" in answer:
        return answer["choice"]
    shares = answer["probabilities"]
    return QUESTIONS[name]["criteria"][int(max(shares, key=shares.get))]


right, sources = Counter[str](), dict[str, str]()
with httpx.Client(base_url="http://127.0.0.1:8080", timeout=60) as client:
    tickets = list(csv.DictReader((HERE / "new.csv").open(encoding="utf-8")))
    for ticket in tickets:
        body = {"model": "nunatak", "state": ticket["text"], "questions": QUESTIONS}
        answers = client.post("/v1/systemone", json=body).raise_for_status().json()["answers"]
        for name, answer in answers.items():
            right[name] += said(name, answer) == ticket[name]
            sources[name] = answer["x_source"]["kind"]
for name in QUESTIONS:
    print(f"{name}: {right[name]} of {len(tickets)} right, by {sources[name]}")
