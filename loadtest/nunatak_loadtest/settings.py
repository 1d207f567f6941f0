"""What a load test does, and how this travels to the locust process: as environment variables.

NUNATAK_LOADTEST_TASKS        task references, separated by commas
NUNATAK_LOADTEST_TEXT_FILE    one text per line; absent: the built-in texts
NUNATAK_LOADTEST_SAMPLES      file that takes one JSON line per request; absent: none is kept
NUNATAK_LOADTEST_SEED         chooses which text goes to which task when
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nunatak_loadtest.errors import InvalidSettingsError
from nunatak_loadtest.texts import DEFAULT_TEXTS, read_texts

_TASKS = "NUNATAK_LOADTEST_TASKS"
_TEXT_FILE = "NUNATAK_LOADTEST_TEXT_FILE"
_SAMPLES = "NUNATAK_LOADTEST_SAMPLES"
_SEED = "NUNATAK_LOADTEST_SEED"


class UserSettings(BaseModel):
    """What one simulated user needs to know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]
    text_file: Path | None = None
    samples: Path | None = None
    seed: int = 0

    @field_validator("tasks")
    @classmethod
    def _fits_an_environment_variable(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        for task in tasks:
            if not task.strip() or "," in task or "\0" in task:
                raise ValueError(f"a task reference is a name without commas, got {task!r}")
        return tasks

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the variables of the module's docstring.

        Raises:
            InvalidSettingsError: a variable is missing or malformed.
        """
        tasks = [task.strip() for task in environment.get(_TASKS, "").split(",") if task.strip()]
        try:
            return cls.model_validate(
                {
                    "tasks": tasks,
                    "text_file": environment.get(_TEXT_FILE) or None,
                    "samples": environment.get(_SAMPLES) or None,
                    "seed": environment.get(_SEED) or 0,
                }
            )
        except ValidationError as error:
            raise InvalidSettingsError(_first_problem(error)) from error

    def to_environment(self) -> dict[str, str]:
        """Write the variables that `from_environment` reads back."""
        environment = {_TASKS: ",".join(self.tasks), _SEED: str(self.seed)}
        if self.text_file is not None:
            environment[_TEXT_FILE] = str(self.text_file.resolve())
        if self.samples is not None:
            environment[_SAMPLES] = str(self.samples.resolve())
        return environment

    def texts(self) -> tuple[str, ...]:
        """The texts to send; reads the file, if one is set."""
        return DEFAULT_TEXTS if self.text_file is None else read_texts(self.text_file)


class LoadTestSettings(BaseModel):
    """One whole run: `users` send one request after another, each for one task, all the time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str = "http://127.0.0.1:8080"
    user: UserSettings
    users: Annotated[int, Field(ge=1, le=10_000)] = 8
    duration_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    memory_interval_s: Annotated[float, Field(gt=0)] = 1.0

    @classmethod
    def checked(cls, **values: object) -> Self:
        """Build settings from outside values.

        Raises:
            InvalidSettingsError: a value is malformed or out of range.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidSettingsError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"
