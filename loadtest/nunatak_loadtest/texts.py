"""The texts of a run: drawn word by word, or from a file.

A server may remember earlier texts, so drawn texts are new unless the scenario repeats some.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from nunatak_contract.errors import NunatakError
from nunatak_loadtest.scenario import (
    FileTexts,
    LogNormalLengths,
    NormalLengths,
    Scenario,
)

# The usual English vocabularies hold each of these words as one token.
WORDS = tuple(files("nunatak_loadtest").joinpath("words.txt").read_text("utf-8").split())
TRIES = 32
"""Most draws of a new text. There are fewer texts of one word than requests."""


class TextSource(Protocol):
    """A source of texts."""

    def draw(self) -> str:
        """The next text."""
        ...


class Repeating:
    """Draws from a fixed set of texts."""

    def __init__(self, texts: Sequence[str], chance: random.Random) -> None:
        self._texts = texts
        self._random = chance

    def draw(self) -> str:
        """Any of the texts."""
        return self._random.choice(self._texts)


class Drawing:
    """Makes texts of drawn lengths; a share of them repeats an earlier one."""

    def __init__(
        self,
        length: Callable[[], float],
        longest: int,
        repeated_share: float,
        chance: random.Random,
    ) -> None:
        self._length = length
        self._longest = longest
        self._repeated_share = repeated_share
        self._random = chance
        self._sent = list[str]()
        self._known = set[str]()

    def draw(self) -> str:
        """A new text, or an earlier one."""
        if self._sent and self._random.random() < self._repeated_share:
            return self._random.choice(self._sent)
        text = self._new()
        self._sent.append(text)
        self._known.add(text)
        return text

    def _new(self) -> str:
        for _ in range(TRIES):
            count = min(max(round(self._length()), 1), self._longest)
            text = " ".join(self._random.choices(WORDS, k=count))
            if text not in self._known:
                return text
        return " ".join(self._random.choices(WORDS, k=self._longest))


def text_source(scenario: Scenario, chance: random.Random) -> TextSource:
    """Return the source of the scenario's texts.

    Raises:
        NunatakError: `invalid_settings`, its file of texts cannot be read.
    """
    match scenario.texts:
        case FileTexts(path=path):
            return Repeating(read_texts(Path(path)), chance)
        case NormalLengths(mean=mean, deviation=deviation, longest=longest):
            length = partial(chance.gauss, mean, deviation)
        case LogNormalLengths(median=median, sigma=sigma, longest=longest):
            length = partial(chance.lognormvariate, math.log(median), sigma)
    return Drawing(length, longest, scenario.repeated_share, chance)


def read_texts(path: Path) -> tuple[str, ...]:
    """Read one text per line; blank lines do not count.

    Raises:
        NunatakError: `invalid_settings`, the file cannot be read or holds no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise NunatakError(
            "invalid_settings", problem=f"cannot read texts from {path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise NunatakError(
            "invalid_settings", problem=f"texts must be UTF-8, but {path} is not: {error}"
        ) from error
    texts = tuple(line.strip() for line in lines if line.strip())
    if not texts:
        raise NunatakError(
            "invalid_settings", problem=f"{path} must hold one text per line, but it holds none"
        )
    return texts
