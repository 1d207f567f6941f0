"""Objectives that read every token: the tags of words, and extractive question answering.

Token classification: the first token of every word gives the word's tag. The words are joined by
spaces to one text, like a text from a caller of the server. Long texts are read in windows that do
not overlap, so that every word is tagged once.

Question answering: Devlin et al. 2019 (arXiv:1810.04805), sec. 4.2 and 4.3. Each token of question
and context gets a start and an end score. The targets of a window without the answer, and of a
question without an answer, are the first token. Answers are read as in the server: each window
gives its own probabilities, and the best span of at most 15 tokens over all windows is the answer.

Axes: tokens = tokens of a window, tags.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from nunatak_model import Alignment, Encoding, TextTokenizer
from nunatak_training.data import Answers, AnswerSpan, ExampleSet, TaggedWords, TaskData, Word
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.objectives.base import Logits, Objective
from nunatak_training.scoring.statistics import uses_bio

LabelT = TypeVar("LabelT")
NO_TARGET = -100
"""The target of tokens that begin no word, which the loss ignores."""
OUTSIDE = "O"
MAX_STRIDE = 128
MAX_ANSWER_TOKENS = 15
CONTEXT = 1
"""Index of the context, the second text of the pair."""
NOWHERE = (0, 0)


class Tagging(Objective):
    """One tag per word: softmax and cross-entropy over first tokens."""

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        self._number_of = {tag: number for number, tag in enumerate(data.labels)}
        by_word = (Metric.ACCURACY, Metric.F1_MACRO, Metric.F1_MICRO)
        has_entities = uses_bio(data.labels)
        self.metrics = (Metric.ENTITY_F1, *by_word) if has_entities else by_word
        self.reported = (Metric.ENTITY_F1, Metric.ACCURACY) if has_entities else (Metric.ACCURACY,)

    def encode(
        self, examples: ExampleSet, tokenizer: TextTokenizer, *, max_length: int
    ) -> EncodedSet:
        """Targets are tag numbers, for every first token of a word."""
        texts = [example.text for example in examples.examples]
        windows = tokenizer.encode_windows(texts, max_length=max_length, stride=0)
        return _encoded(windows, examples.labels(TaggedWords), self._targets)

    def loss(self, logits: Logits, targets: Sequence[Tensor]) -> Float[Tensor, ""]:
        together = torch.cat(list(logits))
        numbers = torch.cat(list(targets)).to(together.device)
        total = functional.cross_entropy(together, numbers, ignore_index=NO_TARGET, reduction="sum")
        # A batch may have no first token of a word, and the mean of no values is NaN.
        return total / (numbers != NO_TARGET).sum().clamp(min=1)

    def answers(
        self, examples: ExampleSet, encoded: EncodedSet, logits: Logits
    ) -> list[tuple[str, ...]]:
        chosen = [cast("list[int]", row.argmax(dim=1).tolist()) for row in logits]
        return [
            self._read(windows, numbers, label.words)
            for windows, numbers, label in zip(
                encoded.by_example(encoded.encodings),
                encoded.by_example(chosen),
                examples.labels(TaggedWords),
                strict=True,
            )
        ]

    def _targets(
        self, windows: Sequence[Encoding], label: TaggedWords
    ) -> list[Int[Tensor, " tokens"]]:
        targets = [torch.full((window.num_tokens,), NO_TARGET) for window in windows]
        for target, found in zip(targets, first_tokens(windows, label.words), strict=True):
            for word, token in found.items():
                target[token] = self._number_of[label.words[word].tag]
        return targets

    def _read(
        self, windows: Sequence[Encoding], numbers: Sequence[list[int]], words: Sequence[Word]
    ) -> tuple[str, ...]:
        """A word without any token counts as outside."""
        tags = [OUTSIDE if OUTSIDE in self._number_of else self._labels[0]] * len(words)
        for found, row in zip(first_tokens(windows, words), numbers, strict=True):
            for word, token in found.items():
                tags[word] = self._labels[row[token]]
        return tuple(tags)


def first_tokens(windows: Sequence[Encoding], words: Sequence[Word]) -> tuple[dict[int, int], ...]:
    """The first token of each word, by the word's number, for the windows of a text.

    A word that a window's end divides belongs to the window with its beginning. Its first token may
    come after its first character: tokenizers drop characters such as zero-width spaces.
    """
    begins = [word.begin for word in words]
    last = -1
    found: list[dict[int, int]] = []
    for window in windows:
        starting: dict[int, int] = {}
        for token, end in _text_tokens(window):
            # The last character decides, because some tokenizers count the space before a word as
            # its first.
            word = bisect_right(begins, end - 1) - 1
            if word > last:
                starting[word] = token
                last = word
        found.append(starting)
    return tuple(found)


def _text_tokens(window: Encoding) -> Iterator[tuple[int, int]]:
    alignment = _alignment(window)
    for token, ((begin, end), text) in enumerate(
        zip(alignment.offsets, alignment.text_ids, strict=True)
    ):
        if text is not None and begin < end:
            yield token, end


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
        return _encoded(windows, examples.labels(Answers), _targets)

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
        raise ValueError("windows need aligned encodings")
    return window.alignment


def _encoded(
    windows: Sequence[tuple[Encoding, ...]],
    labels: Iterable[LabelT],
    targets: Callable[[tuple[Encoding, ...], LabelT], Iterable[Tensor]],
) -> EncodedSet:
    """The windows of each text, with the targets that its label gives them."""
    return EncodedSet(
        encodings=tuple(chain.from_iterable(windows)),
        targets=tuple(chain.from_iterable(map(targets, windows, labels))),
        sizes=tuple(map(len, windows)),
    )
