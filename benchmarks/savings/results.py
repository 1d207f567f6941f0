"""The content of a folder of results: one JSON file per measurement, with its `kind`.

`nunatak loadtest run --out` also writes such files.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_loadtest.report import KeptRun
from nunatak_loadtest.scenario import first_problem


class Result(BaseModel):
    """Base of the measurements: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(Result):
    """The command and the machine of a measurement, so that a reader can repeat it."""

    command: str
    commit: str
    date: str
    hardware: str
    versions: dict[str, str] = {}


class MemoryPoint(Result):
    """Memory of all processes of a system with `tasks` tasks."""

    tasks: int
    pss_bytes: int
    rss_bytes: int
    uss_bytes: int
    peak_pss_bytes: int | None = Field(
        default=None, description="of the samples while it was asked"
    )


class MemoryLine(Result):
    """Memory of one system over the number of its tasks.

    Beyond the largest point, `base_bytes + slope_bytes * tasks` extrapolates the line.
    """

    kind: Literal["memory"] = "memory"
    origin: Origin
    backbone: str
    system: str
    title: str
    is_ours: bool = False
    points: Annotated[tuple[MemoryPoint, ...], Field(min_length=2)]
    base_bytes: float
    slope_bytes: float
    parameter_bytes_per_task: float
    full_model_bytes: float


class SavedCell(Result):
    """A cell of the papers' table: the share saved by T tasks that freeze the lowest N layers."""

    kind: Literal["saved"] = "saved"
    origin: Origin
    backbone: str
    num_tasks: int
    num_frozen: int
    formula_share: float
    measured_share: float
    server_bytes: float = Field(description="growth of the server's PSS by backbone and tasks")
    full_models_bytes: float = Field(description="of as many full models, their tensors alone")


class Round(Result):
    """One system in one round of a race: the highest rate that met the objective."""

    goodput_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int


class Rate(Result):
    """One trial at one offered rate."""

    offered_per_s: float
    answered_per_s: float
    p50_ms: float
    p99_ms: float
    met: bool


class Racer(Result):
    """One system of a race, round by round."""

    system: str
    title: str
    is_ours: bool = False
    rounds: tuple[Round, ...]
    rates: tuple[Rate, ...] = ()
    quantiles_ms: tuple[float, ...] = Field(
        default=(), description="at the rate that all systems were asked at, of answered requests"
    )


class Race(Result):
    """Systems under the same load in turns, on the same machine."""

    kind: Literal["race"] = "race"
    origin: Origin
    workload: str
    title: str
    objective_p99_ms: float
    dtype: str
    common_rate_per_s: float | None = None
    racers: tuple[Racer, ...]


class FanOutPoint(Result):
    """One request for T tasks, compared with T requests for one task each."""

    tasks: int
    speed_up: float
    bound: float


class FanOutLine(Result):
    """Speed-up of one request for T tasks over T requests for one task each."""

    kind: Literal["fanout"] = "fanout"
    origin: Origin
    title: str
    points: tuple[FanOutPoint, ...]


class ManyPoint(Result):
    """A server with `tasks` tasks in its registry and in use."""

    tasks: int
    popularity: str
    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    cold_share: float = Field(description="of requests in the measured time that loaded their task")
    pss_bytes: int
    start_s: float = Field(description="from the start of the process until it was ready")
    fill_s: float = Field(description="to load all tasks once, through HTTP")
    requests: int | None = Field(
        default=None, description="answered while latencies were measured; older results lack it"
    )
    seconds: float | None = Field(default=None, description="that this measurement took")


class ManyTasks(Result):
    """Throughput over the number of tasks."""

    kind: Literal["many"] = "many"
    origin: Origin
    backbone: str
    title: str
    points: tuple[ManyPoint, ...]


AnyResult = KeptRun | MemoryLine | SavedCell | Race | FanOutLine | ManyTasks
_RESULT: TypeAdapter[AnyResult] = TypeAdapter(Annotated[AnyResult, Field(discriminator="kind")])


def save_result(folder: Path, name: str, result: AnyResult) -> Path:
    """Write a measurement; an older one of the same name is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(result.model_dump_json(indent=1), encoding="utf-8")
    return path


def load_results(folder: Path) -> dict[str, AnyResult]:
    """Read every measurement of a folder, by name. `report.json` is no measurement.

    Raises:
        NunatakError: `invalid_settings`, the folder has no results, or a file is not a result.
    """
    found = dict[str, AnyResult]()
    for path in sorted(folder.glob("*.json")):
        if path.name == "report.json":
            continue
        try:
            found[path.stem] = _RESULT.validate_json(path.read_bytes())
        except ValidationError as error:
            raise NunatakError(
                "invalid_settings", problem=f"{path} is no result: {first_problem(error)}"
            ) from error
    if not found:
        raise NunatakError(
            "invalid_settings",
            problem=f"{folder} holds no results; run: nunatak loadtest run --out",
        )
    return found
