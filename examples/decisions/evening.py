"""Trains a task for each question from the tickets of the day, and binds the question to it."""

import csv
import json
from pathlib import Path

import nunatak
from nunatak_contract.questions import QuestionCard
from nunatak_registry import Registry, default_location

HERE = Path(__file__).parent
questions = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
tickets = list(csv.DictReader((HERE / "tickets.csv").open(encoding="utf-8")))

for question in questions:
    name, options = question.pop("name"), question.pop("choices", ())
    rows = [{"text": it["text"], "label": it[name]} for it in tickets]
    done = nunatak.train(name, rows, method="head", promote="prod", show_progress=False)
    card = {"name": name, "task": f"{name}@prod", "question": {**question, "options": options}}
    with Registry.open(default_location()) as registry:
        registry.questions.put(QuestionCard.model_validate(card))
    print(f"{done.reference} answers the question {name!r}")
