"""Token classification: the first token of every word gives the word's tag.

The words are joined by spaces to one text, like a text from a caller of the server. Long texts are
read in windows that do not overlap, so that every word is tagged once.

Axes: tokens = tokens of a window, tags.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from nunatak_model import Encoding, TextTokenizer
from nunatak_training.data import ExampleSet, TaggedWords, TaskData, Word
from nunatak_training.kinds import Metric
from nunatak_training.loop.fit import EncodedSet
from nunatak_training.objectives.base import Logits, Objective, encoded_windows
from nunatak_training.scoring.statistics import uses_bio

NO_TARGET = -100
"""The target of tokens that begin no word, which the loss ignores."""
OUTSIDE = "O"


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
        return encoded_windows(windows, examples.labels(TaggedWords), self._targets)

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
    alignment = window.alignment
    if alignment is None:
        raise ValueError("words need aligned encodings")
    for token, ((begin, end), text) in enumerate(
        zip(alignment.offsets, alignment.text_ids, strict=True)
    ):
        if text is not None and begin < end:
            yield token, end
