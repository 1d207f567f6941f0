"""The places of answers in windows, and the reading of answers from logits."""

import pytest
import torch

from doubles.backbones import tiny_backbone
from nunatak_training.data import Answers, AnswerSpan, Example, ExampleSet, TaskData
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.answering import MAX_ANSWER_TOKENS, answer_tokens, best_span

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
CONTEXT = "ab cd ef gh"


def example(context: str, *answers: tuple[str, int]) -> Example:
    spans = tuple(AnswerSpan(text=text, begin=begin) for text, begin in answers)
    return Example(text="x?", text_pair=context, label=Answers(spans=spans))


def task(*examples: Example) -> TaskData:
    found = ExampleSet(examples=examples)
    kind = TaskKind.QUESTION_ANSWERING
    return TaskData(name="toy", kind=kind, train=found, dev=found, labels=())


def perfect_logits(data: TaskData, *, max_length: int) -> list[torch.Tensor]:
    """Ones at the targets, and zeros elsewhere."""
    encoded = objective_of(data).encode(data.dev, TOKENIZER, max_length=max_length)
    rows: list[torch.Tensor] = []
    for encoding, target in zip(encoded.encodings, encoded.targets, strict=True):
        row = torch.zeros(encoding.num_tokens, 2)
        row[target[0], 0] = row[target[1], 1] = 1.0
        rows.append(row)
    return rows


@pytest.mark.parametrize("max_length", [14, 32])
@pytest.mark.parametrize("answer", [("ab", 0), ("cd ef", 3), ("h", 10)])
def test_answer_is_found_again_in_any_window(answer: tuple[str, int], max_length: int) -> None:
    data = task(example(CONTEXT, answer))
    objective = objective_of(data)
    encoded = objective.encode(data.dev, TOKENIZER, max_length=max_length)

    found = objective.statistics(data.dev, encoded, perfect_logits(data, max_length=max_length))

    assert found.value(Metric.EXACT_MATCH) == 1.0
    assert found.value(Metric.SPAN_F1) == 1.0


def test_window_without_the_answer_points_to_the_first_token() -> None:
    (windows,) = TOKENIZER.encode_windows([("x?", CONTEXT)], max_length=11, stride=0)

    targets = [answer_tokens(it, (AnswerSpan(text="gh", begin=9),)) for it in windows]

    assert targets[0] == (0, 0)
    assert targets[-1] != (0, 0)


def test_question_without_an_answer_is_answered_by_none() -> None:
    data = task(example(CONTEXT), example(CONTEXT, ("ab", 0)))
    objective = objective_of(data)
    encoded = objective.encode(data.dev, TOKENIZER, max_length=32)

    found = objective.statistics(data.dev, encoded, perfect_logits(data, max_length=32))

    assert found.value(Metric.EXACT_MATCH) == 1.0


def test_span_never_ends_before_it_begins_nor_is_too_long() -> None:
    (windows,) = TOKENIZER.encode_windows([("x?", "a " * 20)], max_length=48, stride=0)
    (window,) = windows
    for seed in range(20):
        row = torch.randn(window.num_tokens, 2, generator=torch.Generator().manual_seed(seed))

        score, begin, end = best_span(window, row)

        assert begin < end
        assert len(("a " * 20)[begin:end].split()) <= MAX_ANSWER_TOKENS
        assert score <= float(row[:, 0].max() + row[:, 1].max())
