"""Reports of a running training run: the base, which ignores everything, and a bar."""

import sys
from dataclasses import dataclass
from typing import NoReturn

from tqdm import tqdm

from nunatak_contract.plain_text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """One scored pass over the train examples; of very many epochs, only some are scored."""

    epoch: int
    """Counted from 1."""
    step: int
    """Optimizer steps until the end of the epoch."""
    train_loss: float
    dev_loss: float
    dev_score: float
    """In the recipe's metric."""
    seconds: float


class Report:
    """Receives the progress of a run, from the thread that trains; this one ignores it."""

    def prepared(self, done: int, num_inputs: int) -> None:
        """A number of inputs have passed the trunk. Not called for cached inputs."""

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        """Training begins."""

    def resumed(self, *, num_steps: int) -> None:
        """Training continues an earlier process, after `num_steps` steps."""

    def stepped(self, *, loss: float) -> None:
        """One optimizer step is done."""

    def evaluated(self, result: EpochResult) -> None:
        """One epoch is done and was scored."""

    def ended(self) -> None: ...


class ProgressBar(Report):
    """A bar on standard error; where that is no terminal, one line for each scored epoch."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._num_epochs = 0
        self._bar: tqdm[NoReturn] | None = None

    def prepared(self, done: int, num_inputs: int) -> None:
        if done == 0:
            self._bar = _bar(f"{self._label} (trunk)", num_inputs, unit="text", leave=False)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if done == num_inputs:
            self.ended()

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        self._num_epochs = num_epochs
        self._bar = _bar(f"{self._label} ({num_epochs} epochs)", num_steps, unit="step")

    def resumed(self, *, num_steps: int) -> None:
        if self._bar is not None:
            self._bar.update(num_steps)

    def stepped(self, *, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update()

    def evaluated(self, result: EpochResult) -> None:
        line = (
            f"epoch {result.epoch} of {self._num_epochs}: dev score {result.dev_score:.4f}, "
            f"dev loss {result.dev_loss:.4f}, train loss {result.train_loss:.4f}"
        )
        if self._bar is not None and not self._bar.disable:
            self._bar.write(line, file=sys.stderr)
        else:
            sys.stderr.write(f"{visible(self._label)}: {line}\n")
            sys.stderr.flush()

    def ended(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(label: str, total: int, *, unit: str, leave: bool = True) -> "tqdm[NoReturn]":
    is_silent = not sys.stderr.isatty()
    return tqdm(total=total, desc=visible(label), unit=unit, leave=leave, disable=is_silent)
