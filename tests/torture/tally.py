"""The counts of a campaign, in one line."""

import os
from dataclasses import dataclass, field


def many(few: int, campaign: int) -> int:
    """Return a number of a test, or of the long campaign that `make torture` runs."""
    return campaign if "TORTURE" in os.environ else few


@dataclass
class Tally:
    """Counts of one campaign. All counts except `injected` and `survived` must stay zero."""

    campaign: str
    seed: int
    injected: int = 0
    survived: int = 0
    lost: int = 0
    """Number of acknowledged changes that are lost."""
    wrong: int = 0
    """Number of answers that differ from the model's, and of foreign errors."""
    dangling: int = 0
    """Number of versions without a blob, or with a damaged blob."""
    problems: list[str] = field(default_factory=list[str])
    """The first problems, in words."""

    @property
    def is_clean(self) -> bool:
        return self.injected == self.survived and not (self.lost or self.wrong or self.dangling)

    @property
    def failures(self) -> int:
        return self.lost + self.wrong + self.dangling

    def note(self, problem: str) -> None:
        """Keep a problem, if it is among the first."""
        if len(self.problems) < 10:
            self.problems.append(problem)

    def line(self) -> str:
        return (
            f"{self.campaign}: {self.injected} injected / {self.survived} survived / "
            f"{self.lost} lost / {self.wrong} wrong / {self.dangling} dangling (seed {self.seed})"
        )
