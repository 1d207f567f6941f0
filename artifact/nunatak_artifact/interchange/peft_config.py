"""`adapter_config.json` of peft: the fields read here, and the modules that an adapter changes.

The fields are those of peft 0.21 (`LoraConfig`); older and newer files have fewer or more. An
unknown field is accepted while it is off (null, false, empty). An unknown field that is on is
refused, since it may change the result.

The rules for modules, ranks and scales are peft 0.21's (`check_target_module_exists`,
`get_pattern_key`); a test compares both. A module's name is its path in the adapted model, such as
`bert.encoder.layer.3.attention.self.query`. A pattern from a stranger's file can keep `re` busy for
years, so every pattern that is more than a plain name runs in a process of its own with a time
limit.
"""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nunatak_artifact.errors import CorruptFileError, UnsupportedImportError
from nunatak_artifact.interchange.folders import read_model
from nunatak_contract.enums import LoraTarget
from nunatak_contract.methods import Lora
from nunatak_model import BackboneConfig, maths_of

TIME_LIMIT_SECONDS = 10.0
"""Time limit of the process. An honest pattern takes milliseconds, mostly to start the process."""

_PLAIN = re.compile(r"[\w.-]*")
"""Names, in which a dot stands for any character: nothing to repeat, nothing to choose from."""

_PROGRAM = """
import json, re, sys
patterns, names = json.load(sys.stdin)
json.dump([[name for name in names if re.fullmatch(it, name)] for it in patterns], sys.stdout)
"""
CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter_model"
Names = tuple[str, ...] | str
Positive = Annotated[int, Field(ge=1)]
REFUSED = {
    "use_dora": "DoRA",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "lora_bias": "biases in the low-rank maps (lora_bias)",
    "megatron_config": "Megatron layers (megatron_config)",
    "layer_replication": "replicated layers (layer_replication)",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "target_parameters": "LoRA over bare parameters (target_parameters)",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA (use_bdlora)",
    "arrow_config": "Arrow routing (arrow_config)",
}
IDLE_ALONE = frozenset({"megatron_core", "qalora_group_size"})
"""Settings with a value by default that only a refused feature reads."""
PLAIN_STARTS = frozenset({"true", "false", "gaussian", "eva", "orthogonal"})
"""Values of `init_lora_weights` that leave the base weights alone; others (PiSSA, OLoRA, CorDA,
LoftQ, LoRA-GA) subtract from them, so that the adapter fits only a changed base."""
START_SETTINGS = frozenset({"eva_config", "corda_config", "lora_ga_config", "loftq_config"})
"""Read only while `init_lora_weights` names their method."""
ENCODERS: Mapping[str, str] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
"""`model_type` -> the attribute that holds the encoder in the classes with a head."""
TARGETS: Mapping[LoraTarget, str] = {
    LoraTarget.QUERY: "attention.self.query",
    LoraTarget.KEY: "attention.self.key",
    LoraTarget.VALUE: "attention.self.value",
    LoraTarget.ATTENTION_OUTPUT: "attention.output.dense",
    LoraTarget.FEEDFORWARD_IN: "intermediate.dense",
    LoraTarget.FEEDFORWARD_OUT: "output.dense",
}
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")
ALL_LINEAR = "all-linear"


def matches(
    patterns: Sequence[str],
    names: Sequence[str],
    *,
    folder: str,
    file: str,
    time_limit: float = TIME_LIMIT_SECONDS,
) -> list[frozenset[str]]:
    """For each pattern, out of `file`, the names that it matches from first to last letter.

    Raises:
        CorruptFileError: a pattern is no regular expression, or takes too long.
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
        raise CorruptFileError(
            folder, file, f"holds a pattern that takes over {time_limit:g} s to match"
        ) from error
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip().rpartition("\n")[2][:200]
        raise CorruptFileError(
            folder, file, f"holds a pattern that is no regular expression ({reason})"
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


class _Kind(BaseModel):
    model_config = ConfigDict(frozen=True)

    peft_type: str


class ModelClass(BaseModel):
    """The class of the adapted model (`auto_mapping`)."""

    model_config = ConfigDict(frozen=True)

    base_model_class: str | None = None


class PeftConfig(BaseModel):
    """A LoRA configuration; the fields are documented by peft's `LoraConfig`."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, strict=True)

    task_type: str | None = None
    auto_mapping: ModelClass | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    peft_type: str
    peft_version: str | None = None
    inference_mode: bool = True
    r: Positive = 8
    lora_alpha: float = 8.0
    lora_dropout: float = 0.0
    use_rslora: bool = False
    bias: str = "none"
    target_modules: Names | None = None
    exclude_modules: Names | None = None
    modules_to_save: tuple[str, ...] | None = None
    layers_to_transform: tuple[int, ...] | int | None = None
    layers_pattern: Names | None = None
    rank_pattern: dict[str, Positive] | None = None
    alpha_pattern: dict[str, float] | None = None
    init_lora_weights: bool | str = True


def read_peft_config(folder: Path) -> PeftConfig:
    """Read a LoRA configuration that we can reproduce exactly.

    Raises:
        InvalidFolderError: it cannot be read.
        UnsupportedImportError: it is of another method, or uses what we refuse.
    """
    kind = read_model(folder, CONFIG_FILE, _Kind).peft_type
    if kind != "LORA":
        raise _unsupported(folder, f"it is a peft adapter of type {kind}")
    config = read_model(folder, CONFIG_FILE, PeftConfig)
    for name, value in _extra(config).items():
        if value and name not in IDLE_ALONE | START_SETTINGS:
            found = REFUSED.get(name, f"the unknown setting {name} = {str(value)[:80]!r}")
            raise _unsupported(folder, f"it uses {found}")
    if config.bias != "none":
        raise _unsupported(folder, f"it has trained biases (bias={config.bias!r})")
    start = str(config.init_lora_weights).lower()
    if start not in PLAIN_STARTS:
        raise _unsupported(
            folder, f"it fits a base changed at the start (init_lora_weights={start!r})"
        )
    if isinstance(config.target_modules, str) and config.layers_to_transform:
        # peft refuses the pair too; the only text that peft would accept is all-linear.
        raise _unsupported(folder, "it chooses layers both by pattern and by layers_to_transform")
    return config


def task_type_of(folder: Path, config: PeftConfig) -> TaskType:
    """Return the prediction of the adapted model.

    Raises:
        UnsupportedImportError: nothing that we have a head for, or it is not said.
    """
    if config.task_type is not None:
        for task_type in TaskType:
            if config.task_type == task_type:
                return task_type
    model_class = config.auto_mapping.base_model_class if config.auto_mapping else None
    found = task_type_of_class(model_class or "")
    if config.task_type is None and found is not None:
        return found
    raise UnsupportedImportError(
        folder.name,
        f"its task_type is {config.task_type!r} and its model {model_class!r}",
        f"expected a task_type out of {', '.join(TaskType)}: an adapter without such a head "
        "answers nothing",
    )


def task_type_of_class(model_class: str) -> TaskType | None:
    """Return the prediction of a class of transformers, by the name of the class."""
    return next(
        (task for suffix, task in CLASS_SUFFIXES.items() if model_class.endswith(suffix)), None
    )


def _extra(config: PeftConfig) -> dict[str, JsonValue]:
    return config.__pydantic_extra__ or {}


def _unsupported(folder: Path, found: str) -> UnsupportedImportError:
    return UnsupportedImportError(
        folder.name,
        found,
        "expected plain LoRA; merge the adapter (merge_and_unload) and import the whole model, or "
        "train it again without",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A linear map that can carry a low-rank update."""

    name: str
    out: int
    into: int
    layer: int | None
    """None for the pooler, which belongs to the head here."""
    target: LoraTarget | None


def has_pooler(encoder: str, task_type: TaskType) -> bool:
    """Whether the adapted model reads the encoder's pooler: only BERT for sequences does."""
    return encoder == "bert" and task_type is TaskType.SEQUENCE_CLASSIFICATION


def modules_of(encoder: str, task_type: TaskType, config: BackboneConfig) -> tuple[Module, ...]:
    """Every module of the adapted model that we can update."""
    thinnest = Lora(rank=1, alpha=1.0, targets=tuple(TARGETS))
    shapes = maths_of(thinnest).parameter_shapes(config)
    modules = [
        Module(
            name=f"{encoder}.encoder.layer.{layer}.{path}",
            out=shapes[f"layers.{layer}.lora.{target}.up"][0],
            into=shapes[f"layers.{layer}.lora.{target}.down"][1],
            layer=layer,
            target=target,
        )
        for layer in range(config.num_layers)
        for target, path in TARGETS.items()
    ]
    if has_pooler(encoder, task_type):
        width = config.hidden_width
        name = f"{encoder}.pooler.dense"
        modules.append(Module(name=name, out=width, into=width, layer=None, target=None))
    return tuple(modules)


def embeddings_of(encoder: str) -> tuple[str, ...]:
    """Names of the embedding tables, over which we have no updates."""
    return tuple(f"{encoder}.embeddings.{table}" for table in EMBEDDINGS)


HEAD_NAMES = {
    TaskType.SEQUENCE_CLASSIFICATION: ("classifier", "score"),
    TaskType.TOKEN_CLASSIFICATION: ("classifier", "score"),
    TaskType.QUESTION_ANSWERING: ("qa_outputs",),
}
"""Names that peft adds to `modules_to_save` for a task type, whether written down or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedModule:
    """A module with the rank and the scale of its low-rank update."""

    module: Module
    rank: int
    scale: float


def saved_modules(folder: Path, config: PeftConfig, task_type: TaskType, encoder: str) -> set[str]:
    """Names of the modules that are stored whole.

    Raises:
        UnsupportedImportError: one is neither head nor pooler.
    """
    saved = set(config.modules_to_save or ())
    if config.task_type is not None:
        saved |= set(HEAD_NAMES[task_type])
    known = {"classifier", "score", "qa_outputs", "pooler", f"{encoder}.pooler"}
    if not saved <= known:
        raise UnsupportedImportError(
            folder.name,
            f"it stores {', '.join(sorted(saved - known))} whole (modules_to_save)",
            "expected nothing but the head and the pooler; merge the adapter (merge_and_unload) "
            "and import the whole model",
        )
    return saved


def adapted_modules(
    folder: Path, config: PeftConfig, task_type: TaskType, encoder: str, shape: BackboneConfig
) -> tuple[AdaptedModule, ...]:
    """The modules that a configuration adapts.

    Raises:
        InvalidFolderError: a pattern cannot be matched.
        UnsupportedImportError: an embedding table is adapted, or another module stored whole.
    """
    modules = modules_of(encoder, task_type, shape)
    names = (*(module.name for module in modules), *embeddings_of(encoder))
    excluded = _excluded(folder, config, names)
    saved = saved_modules(folder, config, task_type, encoder)
    open_names = [name for name in names if name not in excluded and not _lies_in(name, saved)]
    chosen = _targeted(folder, config, open_names)
    tables = sorted(chosen & set(embeddings_of(encoder)))
    if tables:
        raise UnsupportedImportError(
            folder.name,
            f"it adapts {tables[0]}",
            "embeddings are shared by all tasks; merge the adapter (merge_and_unload) and import "
            "the whole model",
        )
    adapted = [module for module in modules if module.name in chosen]
    ranks = _by_pattern(folder, config.rank_pattern or {}, adapted, config.r)
    alphas = _by_pattern(folder, config.alpha_pattern or {}, adapted, config.lora_alpha)
    return tuple(
        AdaptedModule(
            module=module,
            rank=int(rank),
            scale=alpha / (math.sqrt(rank) if config.use_rslora else rank),
        )
        for module, rank, alpha in zip(adapted, ranks, alphas, strict=True)
    )


def _excluded(folder: Path, config: PeftConfig, names: Sequence[str]) -> set[str]:
    return set(_named(folder, config.exclude_modules or (), names))


def _lies_in(name: str, modules: Iterable[str]) -> bool:
    return any(f".{module}." in f".{name}." for module in modules)


def _targeted(folder: Path, config: PeftConfig, names: Sequence[str]) -> set[str]:
    targets = config.target_modules or ()
    if isinstance(targets, str):
        if targets.lower() == ALL_LINEAR:
            return {name for name in names if ".embeddings." not in name}
        return set(_named(folder, targets, names))
    # A full name matches its module in any layer.
    layers = _chosen_layers(folder, config, names)
    return {name for name in _named(folder, targets, names) if name in targets or name in layers}


def _chosen_layers(folder: Path, config: PeftConfig, names: Sequence[str]) -> set[str]:
    layers = config.layers_to_transform
    indexes = (layers,) if isinstance(layers, int) else layers
    if not indexes:
        return set(names)
    patterns = config.layers_pattern or (r"[^.]*",)
    patterns = (patterns,) if isinstance(patterns, str) else patterns
    found = _match(folder, [rf"(?:(?:^|.*?\.){it}\.\d+\.).*" for it in patterns], names)
    return {name for it in found for name in it if _layer_of(name) in indexes}


def _layer_of(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _named(folder: Path, chosen: Names, names: Sequence[str]) -> frozenset[str]:
    """A list names modules by their last parts, a text by a pattern for the whole name."""
    if isinstance(chosen, str):
        return _match(folder, [chosen], names)[0]
    return frozenset(
        name for name in names if any(name == it or name.endswith(f".{it}") for it in chosen)
    )


def _by_pattern(
    folder: Path, values: dict[str, int] | dict[str, float], modules: Sequence[Module], usual: float
) -> list[float]:
    """Return each module's value: of the first pattern that ends its name, else the default."""
    names = [module.name for module in modules]
    found = _match(folder, [_ending(pattern) for pattern in values], names)
    return [
        next((value for value, it in zip(values.values(), found, strict=True) if name in it), usual)
        for name in names
    ]


def _ending(pattern: str) -> str:
    return rf"(.*\.)?({pattern})"


def _match(folder: Path, patterns: Sequence[str], names: Sequence[str]) -> list[frozenset[str]]:
    return matches(patterns, names, folder=folder.name, file=CONFIG_FILE)
