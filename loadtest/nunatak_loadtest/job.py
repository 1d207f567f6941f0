"""One run: a scenario, a server and its tasks. It travels to the locust process as a file.

NUNATAK_LOADTEST_JOB          the file
NUNATAK_LOADTEST_SAMPLES      file that takes one JSON line per request; absent: none is kept
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nunatak_loadtest.errors import InvalidSettingsError, first_problem
from nunatak_loadtest.scenario import Scenario

JOB_VARIABLE = "NUNATAK_LOADTEST_JOB"
SAMPLES_VARIABLE = "NUNATAK_LOADTEST_SAMPLES"


class Job(BaseModel):
    """What to send to whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str = "http://127.0.0.1:8080"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    scenario: Scenario

    @field_validator("tasks")
    @classmethod
    def _are_names(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if not all(task.strip() for task in tasks):
            raise ValueError("a task reference is name, name@alias or name/version, not blank")
        if len(set(tasks)) != len(tasks):
            raise ValueError("every task takes part once; ask more tasks or name each once")
        return tasks

    @classmethod
    def checked(cls, **values: object) -> Self:
        """Build a job from outside values.

        Raises:
            InvalidSettingsError: a value is malformed or out of range.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidSettingsError(first_problem(error)) from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the file that the environment names.

        Raises:
            InvalidSettingsError: it names none, or what it names is no job.
        """
        name = environment.get(JOB_VARIABLE)
        if not name:
            raise InvalidSettingsError(f"{JOB_VARIABLE} must name the file of a job, it is not set")
        try:
            return cls.model_validate_json(Path(name).read_bytes())
        except OSError as error:
            raise InvalidSettingsError(f"cannot read {name}: {error.strerror}") from error
        except ValidationError as error:
            raise InvalidSettingsError(f"{name}: {first_problem(error)}") from error
