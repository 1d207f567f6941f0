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
