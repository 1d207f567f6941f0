"""A scenario: the requests of a load test, their rate, their duration, and the objectives.

Every part is a frozen value; a scenario file is TOML with the same names. Some scenarios come with
the package and are read by name, others by the path of their file.
"""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nunatak_contract.errors import NunatakError

SUFFIX = ".toml"

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong with outside values, in one line."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"


class _Part(BaseModel):
    """Base of every part: frozen, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Uniform(_Part):
    """Every task gets equally many requests."""

    kind: Literal["uniform"] = "uniform"


class Zipf(_Part):
    """The task of rank r gets requests in proportion to `r ** -exponent`."""

    kind: Literal["zipf"] = "zipf"
    exponent: Annotated[float, Field(gt=0, le=5)] = 1.0


class Closed(_Part):
    """Users who wait for each answer before the next request; a slow server gets fewer requests.

    With `steps`, the number of users follows the steps, and `users` is ignored.
    """

    kind: Literal["closed"] = "closed"
    users: Annotated[int, Field(ge=1, le=10_000)] = 8
    steps: tuple["Step", ...] = ()


class Step(_Part):
    """A number of users, and their time."""

    users: Annotated[int, Field(ge=1, le=10_000)]
    seconds: Annotated[int, Field(ge=1, le=86_400)]


class Poisson(_Part):
    """Requests that arrive independent of each other and of the server's speed."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Annotated[float, Field(gt=0, le=100_000)]


class Gamma(_Part):
    """Arrivals in bursts: the gaps have a Gamma distribution with this coefficient of variation.

    `cv = 1` is Poisson (S-LoRA, arXiv 2311.03285, sec. 7: shape `1 / cv**2`, scale `cv**2 / rate`).
    """

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Annotated[float, Field(gt=0, le=100_000)]
    cv: Annotated[float, Field(gt=0, le=100)] = 4.0


class NormalLengths(_Part):
    """Words per text: normal, rounded and clipped (PetS, ATC 2022: mean 32, clipped to 1..128)."""

    kind: Literal["normal"] = "normal"
    mean: Positive = 32.0
    deviation: Annotated[float, Field(ge=0)] = 8.0
    longest: Annotated[int, Field(ge=1, le=8192)] = 128


class LogNormalLengths(_Part):
    """Words per text: log-normal around a median, rounded and clipped; many short, few long."""

    kind: Literal["lognormal"] = "lognormal"
    median: Positive = 20.0
    sigma: Positive = 0.6
    longest: Annotated[int, Field(ge=1, le=8192)] = 128


class FileTexts(_Part):
    """Texts from a file, one a line, drawn with repetition."""

    kind: Literal["file"] = "file"
    path: str


class BuiltInTexts(_Part):
    """A dozen sentences from short to long, drawn with repetition."""

    kind: Literal["builtin"] = "builtin"


class Width(_Part):
    """A number of tasks per request, and the share of requests with this number."""

    tasks: Annotated[int, Field(ge=1, le=4096)] = 1
    weight: Positive = 1.0


class WarmUp(_Part):
    """Load before an open loop is measured, in windows, until three in a row agree in their median.

    Two medians agree if the higher is at most `1 + tolerance` times the lower. After `longest_s`
    the measurement starts in any case, and the report names an unsteady server.
    """

    window_s: Positive = 2.0
    longest_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    tolerance: Share = 0.05


class Objectives(_Part):
    """The limits of a good run."""

    p99_ms: Positive = 200.0
    error_share: Share = 0.0


Popularity = Annotated[Uniform | Zipf, Field(discriminator="kind")]
Arrivals = Annotated[Closed | Poisson | Gamma, Field(discriminator="kind")]
Texts = Annotated[
    NormalLengths | LogNormalLengths | FileTexts | BuiltInTexts, Field(discriminator="kind")
]


class Scenario(_Part):
    """One complete load."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    title: str = ""
    num_tasks: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="number of the server's tasks that take part; absent: all"
    )
    popularity: Popularity = Uniform()
    arrivals: Arrivals = Closed()
    texts: Texts = NormalLengths()
    repeated_share: Share = Field(
        default=0.0, description="of requests whose text was sent before; the others are new"
    )
    widths: Annotated[tuple[Width, ...], Field(min_length=1)] = (Width(),)
    duration_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    warm_up: WarmUp = WarmUp()
    objectives: Objectives = Objectives()
    memory_interval_s: Positive = 1.0
    seed: int = 0

    @model_validator(mode="after")
    def _is_wide_enough(self) -> Self:
        widest = max(width.tasks for width in self.widths)
        if self.num_tasks is not None and widest > self.num_tasks:
            raise ValueError(f"a request asks {widest} tasks, but only {self.num_tasks} take part")
        return self

    def changed(
        self,
        *,
        users: int | None = None,
        rate_per_s: float | None = None,
        duration_s: float | None = None,
        text_file: Path | None = None,
    ) -> Self:
        """The scenario with the given values.

        Raises:
            NunatakError: `invalid_settings`, users and rate exclude each other.
        """
        if users is not None and rate_per_s is not None:
            raise NunatakError(
                "invalid_settings",
                problem="give either users (who wait for answers) or a rate, not both",
            )
        changes = dict[str, object]()
        if users is not None:
            changes["arrivals"] = Closed(users=users)
        if rate_per_s is not None:
            changes["arrivals"] = Poisson(rate_per_s=rate_per_s)
        if duration_s is not None:
            changes["duration_s"] = duration_s
        if text_file is not None:
            changes["texts"] = FileTexts(path=str(text_file.resolve()))
        return self.model_copy(update=changes)


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    found = files("nunatak_loadtest").joinpath("scenarios").iterdir()
    names = (Path(entry.name) for entry in found)
    return tuple(sorted(name.stem for name in names if name.suffix == SUFFIX))


def load_scenario(name_or_path: str) -> Scenario:
    """Read a scenario by its name, or from a file that ends in `.toml`.

    Raises:
        NunatakError: `invalid_settings`, there is no scenario of this name, or the file is no
            scenario.
    """
    if name_or_path.endswith(SUFFIX):
        return parse_scenario(_read(Path(name_or_path)), source=name_or_path)
    if name_or_path not in scenario_names():
        known = ", ".join(scenario_names())
        raise NunatakError(
            "invalid_settings",
            problem=f"no scenario {name_or_path!r}; expected one of {known}, or a path ending in "
            f"{SUFFIX}",
        )
    file = files("nunatak_loadtest").joinpath("scenarios", name_or_path + SUFFIX)
    return parse_scenario(file.read_text(encoding="utf-8"), source=name_or_path)


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Read a scenario from TOML.

    Raises:
        NunatakError: `invalid_settings`, the text is no TOML, or not a scenario.
    """
    try:
        return Scenario.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise NunatakError("invalid_settings", problem=f"{source} is no TOML: {error}") from error
    except ValidationError as error:
        raise NunatakError(
            "invalid_settings", problem=f"{source}: {first_problem(error)}"
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise NunatakError(
            "invalid_settings", problem=f"cannot read {path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise NunatakError(
            "invalid_settings", problem=f"a scenario is UTF-8, but {path} is not: {error}"
        ) from error
