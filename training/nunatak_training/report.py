"""The report of a running training run."""

from dataclasses import asdict, dataclass

from nunatak_contract.methods import Method
from nunatak_contract.progress import Progress, Work


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
    """Tells the progress of a run of this name, from the thread that trains."""

    def __init__(self, label: str = "", progress: Progress | None = None) -> None:
        self._label = self._task = label
        self._progress = progress or Progress()
        self._num_counted = 0
        self._num_steps = self._num_epochs = 0

    def tried(self, method: Method) -> None:
        """The next run of a search trains by this method."""
        self._label = f"{self._task}, {method.text}"

    def taught(self, done: int, num_inputs: int) -> None:
        """A teacher has answered a number of inputs."""
        self._count("teacher", done, num_inputs)

    def prepared(self, done: int, num_inputs: int) -> None:
        """A number of inputs have passed the trunk. Not called for cached inputs."""
        self._count("trunk", done, num_inputs)

    def started(self, *, num_steps: int, num_epochs: int) -> None:
        self._num_steps, self._num_epochs = num_steps, num_epochs
        self._progress.begin(Work(self._label, total=num_steps))

    def resumed(self, *, num_steps: int) -> None:
        """Training continues an earlier process, after `num_steps` steps."""
        self._progress.begin(Work(self._label, total=self._num_steps, done=num_steps))
        self._progress.tell("continues from the last checkpoint", step=num_steps)

    def stepped(self, *, loss: float) -> None:
        self._progress.advance(note=f"loss {loss:.3f}")

    def evaluated(self, result: EpochResult) -> None:
        """One epoch is done and was scored."""
        line = (
            f"epoch {result.epoch} of {self._num_epochs}: dev score {result.dev_score:.4f}, "
            f"dev loss {result.dev_loss:.4f}, train loss {result.train_loss:.4f}"
        )
        self._progress.tell(line, **asdict(result))

    def ended(self) -> None:
        self._progress.end()

    def _count(self, what: str, done: int, num_inputs: int) -> None:
        if done == 0:
            self._num_counted = 0
            self._progress.begin(Work(f"{self._label} ({what})", unit="text", total=num_inputs))
        self._progress.advance(done - self._num_counted)
        self._num_counted = done
        if done == num_inputs:
            self._progress.end()
