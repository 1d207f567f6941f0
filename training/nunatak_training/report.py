"""Reports of a running training run: the interface, and two implementations."""

import sys
from dataclasses import dataclass
from typing import NoReturn, Protocol

from tqdm import tqdm

from nunatak_contract.plain_text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """One pass over the train examples, and the scores on the dev examples after it.

    Of a run of very many epochs only some are scored and have a result.
    """

    epoch: int
    """Counted from 1."""
    step: int
    """Optimizer steps until then."""
    train_loss: float
    dev_loss: float
    dev_score: float
    """In the recipe's metric."""
    seconds: float


class Report(Protocol):
    """Receives the progress of a run, from the thread that trains."""

    def prepared(self, done: int, num_inputs: int) -> None:
        """So many inputs have gone through the trunk; told only where they had not before."""
        ...

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        """Training begins."""
        ...

    def resumed(self, *, num_steps: int) -> None:
        """Note that training continues an earlier process, after so many steps."""
        ...

    def stepped(self, *, loss: float) -> None:
        """One optimizer step is done."""
        ...

    def evaluated(self, result: EpochResult) -> None:
        """One epoch is done and was scored."""
        ...

    def ended(self) -> None:
        """Training is over, with or without success."""
        ...


class SilentReport:
    """Ignores the progress."""

    def prepared(self, done: int, num_inputs: int) -> None:
        """Do nothing."""

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        """Do nothing."""

    def resumed(self, *, num_steps: int) -> None:
        """Do nothing."""

    def stepped(self, *, loss: float) -> None:
        """Do nothing."""

    def evaluated(self, result: EpochResult) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


class ProgressBar:
    """A bar on standard error; nothing at all where that is no terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[NoReturn] | None = None

    def prepared(self, done: int, num_inputs: int) -> None:
        """Advance a bar of its own, which goes when all is done."""
        if done == 0:
            self._bar = _bar(f"{self._label} (trunk)", num_inputs, unit="text", leave=False)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if done == num_inputs:
            self.ended()

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        """Show an empty bar."""
        self._bar = _bar(f"{self._label} ({num_epochs} epochs)", num_steps, unit="step")

    def resumed(self, *, num_steps: int) -> None:
        """Begin the bar where the earlier one ended."""
        if self._bar is not None:
            self._bar.update(num_steps)

    def stepped(self, *, loss: float) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update()

    def evaluated(self, result: EpochResult) -> None:
        """Print the score of the epoch above the bar."""
        if self._bar is not None and not self._bar.disable:
            self._bar.write(
                f"epoch {result.epoch}: dev score {result.dev_score:.4f}, "
                f"dev loss {result.dev_loss:.4f}, train loss {result.train_loss:.4f}",
                file=sys.stderr,
            )

    def ended(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(label: str, total: int, *, unit: str, leave: bool = True) -> "tqdm[NoReturn]":
    is_silent = not sys.stderr.isatty()
    return tqdm(total=total, desc=visible(label), unit=unit, leave=leave, disable=is_silent)
