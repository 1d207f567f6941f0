"""Labelled examples: kinds, sources, and the dev split."""

from nunatak_rows import RowFormat
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
from nunatak_training.data.sources import Data, load_labelled, load_task_data
from nunatak_training.data.splits import DataProblem, DataWarning, data_warnings

__all__ = [
    "AnswerSpan",
    "Answers",
    "Data",
    "DataProblem",
    "DataWarning",
    "Example",
    "ExampleSet",
    "Label",
    "LabelSet",
    "Relevance",
    "RowFormat",
    "TaggedWords",
    "TaskData",
    "Word",
    "data_warnings",
    "load_labelled",
    "load_task_data",
]
