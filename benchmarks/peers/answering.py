"""Shared parts of the baselines: their options, one route, and their ready message.

`POST /predict {"tasks": [...], "text": ...}` answers `{"results": [[p, p, p], ...]}`: the
probabilities by task. As in our server, one request may name several tasks for one text.
"""
# pyrefly: ignore-errors

import argparse
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

READY = "ready on "


class Question(BaseModel):
    """A text and the tasks that are asked about it."""

    tasks: list[str]
    text: str


class Answer(BaseModel):
    """Probabilities of the labels, by task."""

    results: list[list[float]]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--base", type=Path, help="folder of the base model")
    parser.add_argument("--mode", default="")
    parser.add_argument("tasks", type=Path, nargs="*", help="one folder each, named as the task")
    return parser.parse_args()


def serve(answer: Callable[[Question], list[list[float]]], port: int) -> None:
    """Serve with FastAPI; `answer` runs in FastAPI's thread pool."""
    app = FastAPI()

    @app.post("/predict")
    def predict(question: Question) -> Answer:
        return Answer(results=answer(question))

    @app.on_event("startup")
    def say_ready() -> None:
        print(f"{READY}http://127.0.0.1:{port}", flush=True)

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
