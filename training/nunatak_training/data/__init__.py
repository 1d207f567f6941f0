"""Labelled examples: their kinds, their sources, and the dev split."""

from nunatak_training.data.examples import (
    Answers,
    AnswerSpan,
    Example,
    ExampleSet,
    Label,
    LabelSet,
    Relevance,
    TaggedWords,
    TaskData,
    Word,
)
from nunatak_training.data.sources import load_examples, load_task_data, load_test_set

__all__ = [
    "AnswerSpan",
    "Answers",
    "Example",
    "ExampleSet",
    "Label",
    "LabelSet",
    "Relevance",
    "TaggedWords",
    "TaskData",
    "Word",
    "load_examples",
    "load_task_data",
    "load_test_set",
]
