"""The traffic of a scenario: due times, tasks and texts, drawn from a seed."""

import math
import random
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path

from nunatak_contract.errors import NunatakError
from nunatak_loadtest.scenarios import Scenario

# The usual English vocabularies hold each of these words as one token.
WORDS = tuple(files("nunatak_loadtest").joinpath("words.txt").read_text("utf-8").split())


class Requests:
    """An endless draw of requests: tasks by popularity, texts by length or from a file.

    A server remembers texts. Drawn texts are of random words, so that hardly one comes twice.
    """

    def __init__(
        self, scenario: Scenario, tasks: Sequence[str], *, seed: int, texts: Sequence[str] = ()
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._scenario = scenario
        self._tasks = tuple(tasks)
        self._cumulative = tuple(accumulate(task_weights(scenario.zipf, len(tasks))))
        self._texts = tuple(texts)

    def draw(self) -> tuple[tuple[str, ...], str]:
        """The next request: distinct tasks, and a text."""
        return self._draw_tasks(), self.draw_text()

    def draw_text(self) -> str:
        """The next text."""
        if self._texts:
            return self._random.choice(self._texts)
        drawn = self._random.lognormvariate(math.log(self._scenario.words), self._scenario.sigma)
        count = min(max(round(drawn), 1), self._scenario.longest)
        return " ".join(self._random.choices(WORDS, k=count))

    def _draw_tasks(self) -> tuple[str, ...]:
        wanted = self._scenario.width
        if wanted >= len(self._tasks):
            return self._tasks
        chosen = dict[str, None]()
        while len(chosen) < wanted:
            (task,) = self._random.choices(self._tasks, cum_weights=self._cumulative)
            chosen[task] = None
        return tuple(chosen)


def gaps(rate_per_s: float, cv: float, *, seed: int) -> Iterator[float]:
    """The seconds between the due times of an open loop, without end."""
    chance, shape = random.Random(seed), 1 / cv**2  # noqa: S311 - not a secret
    while True:
        yield chance.gammavariate(shape, 1 / (shape * rate_per_s))


def task_weights(zipf: float, num_tasks: int) -> tuple[float, ...]:
    """The share of requests of each task, the largest first; the shares add up to one."""
    raw = [rank**-zipf for rank in range(1, num_tasks + 1)]
    total = math.fsum(raw)
    return tuple(weight / total for weight in raw)


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
