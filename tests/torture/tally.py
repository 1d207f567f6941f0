"""The counts of a campaign, in one line."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one campaign. All counts except `injected` and `survived` must stay zero."""

    campaign: str
    seed: int
    injected: int = 0
    survived: int = 0
    lost: int = 0
    """Acknowledged, and gone."""
    wrong: int = 0
    """Another answer than the model's, or an error that is not one of the registry's."""
    dangling: int = 0
    """A version without its blob, or with a damaged one."""
    problems: list[str] = field(default_factory=list[str])
    """The first few things that went wrong, to be read by people."""

    @property
    def is_clean(self) -> bool:
        """Whether everything injected was survived."""
        return self.injected == self.survived and not (self.lost or self.wrong or self.dangling)

    @property
    def failures(self) -> int:
        """How often a law was broken."""
        return self.lost + self.wrong + self.dangling

    def note(self, problem: str) -> None:
        """Keep a problem, if there is room."""
        if len(self.problems) < 10:
            self.problems.append(problem)

    def line(self) -> str:
        """Return the summary."""
        return (
            f"{self.campaign}: {self.injected} injected / {self.survived} survived / "
            f"{self.lost} lost / {self.wrong} wrong / {self.dangling} dangling (seed {self.seed})"
        )
