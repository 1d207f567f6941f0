"""Labelled examples: what they are, where they are read from, how a dev split is drawn."""

from nunatak_training.data.examples import Example, ExampleSet, TaskData
from nunatak_training.data.sources import load_examples, load_task_data

__all__ = ["Example", "ExampleSet", "TaskData", "load_examples", "load_task_data"]
