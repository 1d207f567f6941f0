"""Extractive question answering: a start and an end score for every token.

Devlin et al. 2019 (arXiv:1810.04805), sec. 4.2 and 4.3. Each token of question and context gets a
start and an end score. The targets of a window without the answer, and of a question without an
answer, are the first token. Answers are read as in the server: each window gives its own
probabilities, and the best span of at most 15 tokens over all windows is the answer.

Axes: tokens = tokens of a window.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from nunatak_model import Alignment, Encoding, TextTokenizer
from nunatak_training.data import Answers, AnswerSpan, ExampleSet
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.objectives.base import Logits, Objective, encoded_windows

MAX_STRIDE = 128
MAX_ANSWER_TOKENS = 15
CONTEXT = 1
"""Index of the context, the second text of the pair."""
NOWHERE = (0, 0)


class Answering(Objective):
    """A start and an end, each with a cross-entropy over the tokens of a window."""

    metrics = (Metric.SPAN_F1, Metric.EXACT_MATCH)
    reported = metrics

    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """A window's targets are the first and last token of the first answer, or twice token 0."""
        inputs = [example.model_input for example in examples.examples]
        stride = min(MAX_STRIDE, max_length // 2)
        windows = tokenizer.encode_windows(inputs, max_length=max_length, stride=stride)
        return encoded_windows(windows, examples.labels(Answers), _targets)

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        losses = [
            functional.cross_entropy(row.T, target.to(row.device))
            for row, target in zip(logits, targets, strict=True)
        ]
        return torch.stack(losses).mean()

    def answers(self, examples: ExampleSet, encoded: EncodedSet, logits: Logits) -> list[str]:
        # As `nunatak evaluate` asks: "no answer" competes where the examples have such questions.
        may_have_none = not all(label.spans for label in examples.labels(Answers))
        return [
            _answer(windows, rows, example.text_pair or "", may_have_none=may_have_none)
            for windows, rows, example in zip(
                encoded.by_example(encoded.encodings),
                encoded.by_example([row.cpu() for row in logits]),
                examples.examples,
                strict=True,
            )
        ]


def _answer(windows: Sequence[Encoding], rows: Logits, context: str, *, may_have_none: bool) -> str:
    read = [log_probabilities(window, row) for window, row in zip(windows, rows, strict=True)]
    best = max(best_span(window, row) for window, row in zip(windows, read, strict=True))
    score, begin, end = best
    if may_have_none and min(float(row[0].sum()) for row in read) > score:
        return ""
    return context[begin:end]


def answer_tokens(window: Encoding, spans: Sequence[AnswerSpan]) -> tuple[int, int]:
    """The first and last token of an answer; `NOWHERE` unless both are here."""
    alignment = _alignment(window)
    for span in spans:
        first = _token_with(alignment, span.begin)
        last = _token_with(alignment, span.end - 1)
        if first is not None and last is not None:
            return first, last
    return NOWHERE


def _targets(windows: Sequence[Encoding], label: Answers) -> Iterator[Int[Tensor, " 2"]]:
    return (torch.tensor(answer_tokens(window, label.spans[:1])) for window in windows)


def log_probabilities(
    window: Encoding, row: Float[Tensor, "tokens 2"]
) -> Float[Tensor, "tokens 2"]:
    """Over the first token and the context, like the server."""
    readable = _in_context(window)
    readable[0] = True
    return row.masked_fill(~readable[:, None], -torch.inf).log_softmax(dim=0)


def best_span(window: Encoding, row: Float[Tensor, "tokens 2"]) -> tuple[float, int, int]:
    """The largest sum of a start and an end score, and its characters in the context."""
    alignment = _alignment(window)
    inside = _in_context(window)
    sums = row[:, :1] + row[:, 1:].T
    pairs = inside[:, None] & inside[None, :]
    allowed = pairs.triu() & pairs.tril(MAX_ANSWER_TOKENS - 1)
    if not allowed.any():
        return -torch.inf, 0, 0
    place = int(sums.masked_fill(~allowed, -torch.inf).argmax())
    first, last = divmod(place, len(inside))
    return float(sums[first, last]), alignment.offsets[first][0], alignment.offsets[last][1]


def _in_context(window: Encoding) -> Bool[Tensor, " tokens"]:
    return torch.tensor([text == CONTEXT for text in _alignment(window).text_ids])


def _token_with(alignment: Alignment, character: int) -> int | None:
    for token, ((begin, end), text) in enumerate(
        zip(alignment.offsets, alignment.text_ids, strict=True)
    ):
        if text == CONTEXT and begin <= character < end:
            return token
    return None


def _alignment(window: Encoding) -> Alignment:
    if window.alignment is None:
        raise ValueError("answers need aligned encodings")
    return window.alignment
