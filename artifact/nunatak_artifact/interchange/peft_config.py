"""`adapter_config.json` of peft: fields of all methods, and the modules that an adapter changes.

The rules for modules are peft 0.21's (`check_target_module_exists`, `get_pattern_key`); a test
compares both. A module's name is its path in the adapted model, such as
`bert.encoder.layer.3.attention.self.query`. A pattern from a stranger's file can keep `re` busy for
years, so every pattern that is more than a plain name runs in a process of its own with a time
limit.
"""

import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue
from torch import Tensor

from nunatak_artifact.interchange.transformers_layout import (
    CLASSIFIER,
    FAMILIES,
    embedding_modules,
    linear_module,
)
from nunatak_contract.enums import LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import Method
from nunatak_model import BackboneConfig
from nunatak_model.layer import MapChange
from nunatak_model.methods.base import map_widths
from nunatak_model.weights import Shapes

TIME_LIMIT_SECONDS = 10.0
"""Time limit of the process. A normal pattern takes milliseconds, mostly to start the process."""

_PLAIN = re.compile(r"[\w.-]*")
"""Matches plain names, in which a dot stands for any character."""

_PROGRAM = """
import json, re, sys
patterns, names = json.load(sys.stdin)
json.dump([[name for name in names if re.fullmatch(it, name)] for it in patterns], sys.stdout)
"""
CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter_model"
Names = tuple[str, ...] | str
SUPPORTED = (
    *("bert", "roberta", "xlm-roberta", "camembert"),
    *("distilbert", "electra", "deberta-v2", "mpnet"),
)
"""Values of `model_type` for which adapters are read and written; each map is one module there."""
ALL_LINEAR = "all-linear"


def matches(
    patterns: Sequence[str],
    names: Sequence[str],
    *,
    folder: str,
    file: str,
    time_limit: float = TIME_LIMIT_SECONDS,
) -> list[frozenset[str]]:
    """The names that each pattern of `file` matches from the first to the last letter.

    Raises:
        NunatakError: `corrupt_file`, a pattern is no regular expression, or takes too long.
    """
    if all(_PLAIN.fullmatch(pattern) for pattern in patterns):
        return [
            frozenset(name for name in names if re.fullmatch(pattern, name)) for pattern in patterns
        ]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and program; patterns are data
            [sys.executable, "-I", "-c", _PROGRAM],
            input=json.dumps([list(patterns), list(names)]),
            capture_output=True,
            text=True,
            check=True,
            timeout=time_limit,
        )
    except subprocess.TimeoutExpired as error:
        raise NunatakError(
            "corrupt_file",
            folder=folder,
            file=file,
            problem=f"holds a pattern that takes over {time_limit:g} s to match",
        ) from error
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip().rpartition("\n")[2][:200]
        raise NunatakError(
            "corrupt_file",
            folder=folder,
            file=file,
            problem=f"holds a pattern that is no regular expression ({reason})",
        ) from error
    found: list[list[str]] = json.loads(done.stdout)
    return [frozenset(it) for it in found]


class TaskType(StrEnum):
    """Predictions of the adapted model for which there is a head here (peft's names)."""

    SEQUENCE_CLASSIFICATION = "SEQ_CLS"
    TOKEN_CLASSIFICATION = "TOKEN_CLS"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "QUESTION_ANS"


CLASS_SUFFIXES = {
    "ForSequenceClassification": TaskType.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": TaskType.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": TaskType.QUESTION_ANSWERING,
}
"""The task by the end of the class name, for configurations without a task type."""


class ModelClass(BaseModel):
    """The class of the adapted model (`auto_mapping`)."""

    model_config = ConfigDict(frozen=True)

    base_model_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A linear map that an adapter can change."""

    name: str
    out: int
    into: int
    layer: int | None
    """None for the pooler, which belongs to the head here."""
    target: LinearMap | None


class AdaptedModule(Protocol):
    """A module, and how a method changes it."""

    @property
    def module(self) -> Module:
        """The module."""
        ...

    def shapes(self) -> Shapes:
        """Names, without prefix, and shapes of the stored tensors."""
        ...

    def difference(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Describe how the stored tensors fit another width than the module's; None if they fit."""
        ...

    def change(self, tensors: Mapping[str, Tensor]) -> MapChange:
        """The change that the stored tensors make."""
        ...


Place = tuple[int, LinearMap]
"""A layer, and a map of it."""


class PeftConfig(BaseModel, ABC):
    """The fields that all methods share; they are documented by peft's `PeftConfig`.

    Each method of peft that is read and written has one subclass.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, strict=True)

    TITLE: ClassVar[str]
    """The usual name of the method."""
    METHOD: ClassVar[type[Method]]
    """The method of Nunatak with the same maths."""

    task_type: str | None = None
    auto_mapping: ModelClass | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    peft_type: str
    peft_version: str | None = None
    inference_mode: bool = True
    target_modules: Names | None = None
    exclude_modules: Names | None = None
    modules_to_save: tuple[str, ...] | None = None

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Return if we can reproduce exactly what the configuration says.

        Raises:
            NunatakError: `unsupported_import`, it uses what we refuse.
        """

    def chosen_layers(self, folder: Path, names: Sequence[str]) -> set[str]:
        """Return the module names that lie in a layer to adapt: all, unless the method chooses."""
        del folder
        return set(names)

    @abstractmethod
    def adapted(self, folder: Path, modules: Sequence[Module]) -> tuple[AdaptedModule, ...]:
        """How the method changes each of the modules that it adapts."""

    @classmethod
    @abstractmethod
    def normalised(
        cls, changes: Mapping[Place, MapChange], config: BackboneConfig
    ) -> tuple[Method, dict[str, Tensor]]:
        """Changes that the method made, at least one, as one method of ours with its parameters.

        Raises:
            NunatakError: `invalid_method`, a change is beyond what our method takes.
        """

    @classmethod
    @abstractmethod
    def fields(cls, method: Method, config: BackboneConfig) -> dict[str, JsonValue]:
        """The fields of a configuration that describe one of our methods."""

    @classmethod
    @abstractmethod
    def stored(cls, name: str, tensor: Tensor, config: BackboneConfig) -> tuple[str, Tensor]:
        """Name, without prefix, and shape in which peft stores a tensor of a layer of ours."""

    def unsupported(self, folder: Path, found: str) -> NunatakError:
        """Return the error for an unsupported feature of the folder."""
        return NunatakError(
            "unsupported_import",
            folder=folder.name,
            found=found,
            advice=f"expected plain {self.TITLE}; merge the adapter (merge_and_unload) and import "
            "the whole model, or train it again without",
        )


def task_type_of(folder: Path, config: PeftConfig) -> TaskType:
    """Return the prediction of the adapted model.

    Raises:
        NunatakError: `unsupported_import`, no head here fits the prediction, or the file does not
            name it.
    """
    if config.task_type is not None:
        for task_type in TaskType:
            if config.task_type == task_type:
                return task_type
    model_class = config.auto_mapping.base_model_class if config.auto_mapping else None
    found = task_type_of_class(model_class or "")
    if config.task_type is None and found is not None:
        return found
    raise NunatakError(
        "unsupported_import",
        folder=folder.name,
        found=f"its task_type is {config.task_type!r} and its model {model_class!r}",
        advice=f"expected a task_type out of {', '.join(TaskType)}: an adapter without such a head "
        "answers nothing",
    )


def task_type_of_class(model_class: str) -> TaskType | None:
    """Return the prediction of a class of transformers, by the name of the class."""
    return next(
        (task for suffix, task in CLASS_SUFFIXES.items() if model_class.endswith(suffix)), None
    )


def own_dense(task_type: TaskType, config: BackboneConfig) -> str | None:
    """The module with the dense layer of the adapted model's head, if it is outside `classifier`.

    Such a layer may belong to the base model, as BERT's pooler.
    """
    is_read = task_type is TaskType.SEQUENCE_CLASSIFICATION
    return FAMILIES[config.model_type].own_dense if is_read else None


def modules_of(task_type: TaskType, config: BackboneConfig) -> tuple[Module, ...]:
    """Every module of the adapted model that we can change."""
    modules = list[Module]()
    for layer in range(config.num_layers):
        for target in LinearMap:
            out, into = map_widths(target, layer, config)
            name = linear_module(target, layer, config)
            modules.append(Module(name=name, out=out, into=into, layer=layer, target=target))
    if own_dense(task_type, config) is not None:
        width, name = config.hidden_width, FAMILIES[config.model_type].dense
        modules.append(Module(name=name, out=width, into=width, layer=None, target=None))
    return tuple(modules)


HEAD_NAMES = {
    TaskType.SEQUENCE_CLASSIFICATION: ("classifier", "score"),
    TaskType.TOKEN_CLASSIFICATION: ("classifier", "score"),
    TaskType.QUESTION_ANSWERING: ("qa_outputs",),
}
"""Names that peft adds to `modules_to_save` for a task type, whether written down or not."""


def saved_modules(
    folder: Path, config: PeftConfig, task_type: TaskType, shape: BackboneConfig
) -> set[str]:
    """Names of the modules that are stored whole.

    Raises:
        NunatakError: `unsupported_import`, a stored module is no part of the head.
    """
    saved = set(config.modules_to_save or ())
    if config.task_type is not None:
        saved |= set(HEAD_NAMES[task_type])
    family = FAMILIES[shape.model_type]
    poolers = ("pooler", f"{family.encoder}.pooler")
    known = {CLASSIFIER, "score", "qa_outputs", *poolers, family.own_dense or CLASSIFIER}
    if not saved <= known:
        raise NunatakError(
            "unsupported_import",
            folder=folder.name,
            found=f"it stores {', '.join(sorted(saved - known))} whole (modules_to_save)",
            advice="expected nothing but the head and its dense layer; merge the adapter "
            "(merge_and_unload) and import the whole model",
        )
    return saved


def adapted_modules(
    folder: Path, config: PeftConfig, task_type: TaskType, shape: BackboneConfig
) -> tuple[AdaptedModule, ...]:
    """The modules that a configuration adapts, each with its change.

    Raises:
        NunatakError: `invalid_folder`, a pattern cannot be matched.
        NunatakError: `unsupported_import`, an embedding table is adapted, or another module stored
            whole.
    """
    modules, embeddings = modules_of(task_type, shape), embedding_modules(shape)
    names = (*(module.name for module in modules), *embeddings)
    excluded = _excluded(folder, config, names)
    saved = saved_modules(folder, config, task_type, shape)
    open_names = [name for name in names if name not in excluded and not _lies_in(name, saved)]
    linear = {name for name in open_names if embeddings.get(name, True)}
    chosen = _targeted(folder, config, open_names, linear)
    tables = sorted(chosen & embeddings.keys())
    if tables:
        raise NunatakError(
            "unsupported_import",
            folder=folder.name,
            found=f"it adapts {tables[0]}",
            advice="embeddings are shared by all tasks; merge the adapter (merge_and_unload) and "
            "import the whole model",
        )
    return config.adapted(folder, [module for module in modules if module.name in chosen])


def _excluded(folder: Path, config: PeftConfig, names: Sequence[str]) -> set[str]:
    return set(named(folder, config.exclude_modules or (), names))


def _lies_in(name: str, modules: Iterable[str]) -> bool:
    return any(f".{module}." in f".{name}." for module in modules)


def _targeted(folder: Path, config: PeftConfig, names: Sequence[str], linear: set[str]) -> set[str]:
    targets = config.target_modules or ()
    if isinstance(targets, str):
        if targets.lower() == ALL_LINEAR:
            return linear
        return set(named(folder, targets, names))
    # A full name matches its module in any layer.
    layers = config.chosen_layers(folder, names)
    return {name for name in named(folder, targets, names) if name in targets or name in layers}


def named(folder: Path, chosen: Names, names: Sequence[str]) -> frozenset[str]:
    """A list names modules by their last parts, a text by a pattern for the whole name."""
    if isinstance(chosen, str):
        return match_names(folder, [chosen], names)[0]
    return frozenset(
        name for name in names if any(name == it or name.endswith(f".{it}") for it in chosen)
    )


def match_names(
    folder: Path, patterns: Sequence[str], names: Sequence[str]
) -> list[frozenset[str]]:
    """For each pattern of a configuration, the names that it matches as a whole.

    Raises:
        NunatakError: `corrupt_file`, a pattern is no regular expression, or takes too long.
    """
    return matches(patterns, names, folder=folder.name, file=CONFIG_FILE)


def target_pattern(
    targets: Iterable[LinearMap], config: BackboneConfig, *, first_layer: int
) -> str:
    """A pattern for whole names: a list of last parts would confuse the two `output.dense`."""
    # The names of a map differ between the layers in the number of the layer alone.
    around = [linear_module(target, 0, config).split(".0.") for target in targets]
    layers = "|".join(map(str, range(first_layer, config.num_layers)))
    stack = re.escape(around[0][0]) if around else ""
    paths = "|".join(re.escape(path) for _, path in around)
    return rf"{stack}\.({layers})\.({paths})"
