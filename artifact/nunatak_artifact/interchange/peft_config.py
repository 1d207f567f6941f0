"""`adapter_config.json` of peft: what we read of it, and what we refuse by name.

Read from peft 0.21 (`LoraConfig`); files of older releases lack fields, those of newer ones may
have more. A field we do not know is accepted while it is off (null, false, empty), and refused
otherwise, since it may change what the adapter computes.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nunatak_artifact.errors import UnsupportedImportError
from nunatak_artifact.interchange.adapter_folder import read_model

CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter_model"

Names = tuple[str, ...] | str
Positive = Annotated[int, Field(ge=1)]


class TaskType(StrEnum):
    """What the adapted model predicts, as far as we have heads for it (peft's names)."""

    SEQUENCE_CLASSIFICATION = "SEQ_CLS"
    TOKEN_CLASSIFICATION = "TOKEN_CLS"  # noqa: S105 - a kind, no secret
    QUESTION_ANSWERING = "QUESTION_ANS"


CLASS_SUFFIXES = {
    "ForSequenceClassification": TaskType.SEQUENCE_CLASSIFICATION,
    "ForTokenClassification": TaskType.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": TaskType.QUESTION_ANSWERING,
}
"""How the class of the adapted model, recorded where no task type is, tells the task."""

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
        # peft refuses the pair as well; all-linear is the one text that it could have meant.
        raise _unsupported(folder, "it chooses layers both by pattern and by layers_to_transform")
    return config


def task_type_of(folder: Path, config: PeftConfig) -> TaskType:
    """What the adapted model predicts.

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
    """What a class of transformers predicts, as its name tells."""
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
