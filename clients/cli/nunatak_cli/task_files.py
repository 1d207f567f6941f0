"""Files that list tasks to train: YAML or TOML, with the names of the options of `train`.

backbone: minilm
shared: {epochs: 3}
tasks:
  tone: {data: tone.jsonl, layers: 2, promote: prod}
  names: {data: ner/, method: lora, rank: 4}
"""

import tomllib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from nunatak_cli.errors import TaskFileError
from nunatak_cli.options import (
    KindName,
    MethodName,
    MetricName,
    OnLongName,
    OptimizerName,
    RegularizerName,
    ScheduleName,
)

METHOD_SETTINGS = ("layers", "frozen", "size", "rank", "alpha", "targets", "first_layer", "target")
LAYER_SETTINGS = {"layers", "frozen", "target"}
Count = Annotated[int, Field(ge=1)]


class SharedSettings(BaseModel):
    """What a task may say, and what all may say together; absent is as in `train`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: KindName | None = None
    promote: str | None = None
    note: str | None = None
    method: MethodName | None = None
    layers: Count | Literal["auto"] | None = None
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    frozen: Annotated[int, Field(ge=0)] | None = None
    size: Count | None = None
    rank: Count | None = None
    alpha: float | None = None
    targets: str | None = None
    first_layer: Annotated[int, Field(ge=0)] | None = None
    metric: MetricName | None = None
    positive_label: str | None = None
    default_label: str | None = None
    on_long: OnLongName | None = None
    epochs: Count | None = None
    learning_rate: float | None = None
    head_learning_rate: float | None = None
    optimizer: OptimizerName | None = None
    weight_decay: float | None = None
    schedule: ScheduleName | None = None
    warmup_share: float | None = None
    dropout: float | None = None
    batch_size: Count | None = None
    max_length: int | None = None
    seed: int | None = None
    tapt_epochs: Count | None = None
    tapt_learning_rate: float | None = None
    regularizer: RegularizerName | None = None
    regularizer_rate: float | None = None


class TaskSettings(SharedSettings):
    """One task; only its data must be named."""

    data: str
    dev: Path | None = None


class TaskFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str | None = None
    shared: SharedSettings = SharedSettings()
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1)]


def read_task_file(path: Path) -> TaskFile:
    """Return what a file says; its paths are relative to its folder, each task has all settings.

    Raises:
        TaskFileError: there is no such file, or it breaks the format; the message names the place.
    """
    content = _parsed(path)
    try:
        file = TaskFile.model_validate(content)
        # Again, now with what tasks share, for only together may two settings contradict.
        tasks = {name: _merged(file.shared, task, path.parent) for name, task in file.tasks.items()}
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise TaskFileError(path, place, problem["msg"]) from error
    return file.model_copy(update={"tasks": tasks})


def _parsed(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix.lower():
            case ".toml":
                return tomllib.loads(text)
            case ".yaml" | ".yml":
                return yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a safe loader
            case suffix:
                raise TaskFileError(path, "file", f"expected .yaml, .yml or .toml, got {suffix!r}")
    except OSError as error:
        raise TaskFileError(path, "file", error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise TaskFileError(path, "file", " ".join(str(error).split())) from error


def _merged(shared: SharedSettings, task: TaskSettings, folder: Path) -> TaskSettings:
    common = shared.model_dump(exclude_none=True)
    own = task.model_dump(exclude_none=True)
    method = common.get("method", MethodName.TOPK)
    if own.get("method", method) is not method:
        # Settings of a method are for the tasks that have it.
        common = {name: value for name, value in common.items() if name not in METHOD_SETTINGS}
    if {"layers", "frozen"} & own.keys():
        # A share to keep is for layers that are chosen by it.
        dropped = {"layers", "frozen"} if own.get("layers") == "auto" else LAYER_SETTINGS
        common = {name: it for name, it in common.items() if name not in dropped}
    merged = {**common, **own}
    if (folder / task.data).exists():
        merged["data"] = str(folder / task.data)
    if task.dev is not None:
        merged["dev"] = folder / task.dev
    return TaskSettings.model_validate(merged)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take the last."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - as inherited
    ) -> dict[Hashable, object]:
        keys = [cast("object", key.value) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                problem=f"{twice!r} stands twice", problem_mark=node.start_mark
            )
        return cast("dict[Hashable, object]", super().construct_mapping(node, deep=deep))


def recipe_changes(task: TaskSettings) -> Mapping[str, JsonValue]:
    """Return the settings of the recipe that a task names."""
    left_out = {"data", "dev", "kind", "promote", "note", "method", *METHOD_SETTINGS}
    left_out |= {"regularizer", "regularizer_rate", "tapt_epochs", "tapt_learning_rate"}
    return task.model_dump(mode="json", exclude_none=True, exclude=left_out)


def method_choice(task: TaskSettings) -> dict[str, float | str | None]:
    """Return the settings of the method that a task names."""
    return cast(
        "dict[str, float | str | None]",
        task.model_dump(include=set[str](METHOD_SETTINGS) - {"target"}),
    )
