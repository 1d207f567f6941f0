"""Which modules a peft configuration adapts, with which rank and scale.

The rules are those of peft 0.21 (`check_target_module_exists`, `get_pattern_key`), of which
configurations are an input; a test holds them against peft itself.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nunatak_artifact.errors import UnsupportedImportError
from nunatak_artifact.interchange.peft_config import CONFIG_FILE, Names, PeftConfig, TaskType
from nunatak_artifact.interchange.peft_modules import Module, embeddings_of, modules_of
from nunatak_artifact.interchange.peft_patterns import matches
from nunatak_model import BackboneConfig

ALL_LINEAR = "all-linear"
HEAD_NAMES = {
    TaskType.SEQUENCE_CLASSIFICATION: ("classifier", "score"),
    TaskType.TOKEN_CLASSIFICATION: ("classifier", "score"),
    TaskType.QUESTION_ANSWERING: ("qa_outputs",),
}
"""What peft adds to `modules_to_save` for a task type, whether or not it is written down."""


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
    # A full name stands for itself whatever its layer.
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
    """Of each module the value of the first pattern that ends its name, or else the usual one."""
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
