"""Folders of sentence-transformers, releases 2 to 6: the embedding of a text by a checkpoint.

A folder is a chain of modules, listed in `modules.json`: the encoder, its pooling and maybe a
normalisation. A chain with any other module is refused by the module's name, since its embeddings
would differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nunatak_contract.enums import Pooling
from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError

MODULES, SENTENCE_CONFIG = "modules.json", "config_sentence_transformers.json"
OLD_POOLING = "1_Pooling"
"""The folder of the pooling if no file lists the modules."""
ENCODER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files with the settings of the encoder, one name per release. The first file found counts."""
EMBEDDER = "SentenceTransformer"
FILES = (MODULES, SENTENCE_CONFIG, *ENCODER_CONFIGS, "*_Pooling/config.json")
POOLINGS = {"mean": Pooling.MEAN, "cls": Pooling.FIRST, "lasttoken": Pooling.LAST}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The spelling of the pooling modes in releases 2 to 5."""
CHANGES_READING = (
    *("tokenizer_args", "processor_kwargs", "config_args", "config_kwargs", "processing_kwargs"),
    *("query_length", "document_length", "query_expansion"),
)
"""Settings of the encoder's module that may change the encoder's input."""
PLAIN = (
    f"a copy of the folder without {MODULES} and {OLD_POOLING} is the bare encoder, whose "
    "embeddings are others"
)

ReadJson = Callable[[str], object]
"""None: there is no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The embedding settings of a checkpoint."""

    pooling: Pooling
    max_tokens: int | None
    """Length to which longer texts are cut."""


def read_embedding(
    read: ReadJson, definition: Mapping[str, Any], settings: Mapping[str, Any]
) -> Embedding | None:
    """The folder's settings; None if it is no folder of sentence-transformers."""
    general = json_object(read, SENTENCE_CONFIG)
    if general.get("model_type", EMBEDDER) != EMBEDDER:
        return None
    modules = read_modules(read)
    if modules is None:
        pooling = read(f"{OLD_POOLING}/config.json")
        if pooling is None:
            return None
        return Embedding(pooling=_pooling(read, OLD_POOLING), max_tokens=None)
    kinds = [kind for kind, _ in modules]
    if kinds[1:2] != ["Pooling"] or set(kinds[2:]) - {"Normalize"}:
        raise UnsupportedBackboneError(
            f"expected the modules Transformer, Pooling and maybe Normalize in {MODULES}, got "
            f"{', '.join(kinds)}; {PLAIN}"
        )
    _check_general(general)
    return Embedding(
        pooling=_pooling(read, modules[1][1]),
        max_tokens=read_max_tokens(read, definition, settings),
    )


def read_modules(read: ReadJson) -> list[tuple[str, str]] | None:
    found = read(MODULES)
    if found is None:
        return None
    try:
        listed = [
            (str(it["type"]), str(it["path"])) for it in cast("list[dict[str, object]]", found)
        ]
    except (TypeError, KeyError) as error:
        raise CorruptBackboneError(f"{MODULES} must list modules with type and path") from error
    for name, _ in listed:
        if not name.startswith("sentence_transformers."):
            raise UnsupportedBackboneError(
                f"expected modules of sentence_transformers in {MODULES}, got {name!r}; {PLAIN}"
            )
    modules = [(name.rpartition(".")[2], path) for name, path in listed]
    if any(path.startswith(("/", "\\")) or ".." in path for _, path in modules):
        raise CorruptBackboneError(f"{MODULES} must name folders inside its own, got {modules}")
    if not modules or modules[0] != ("Transformer", ""):
        raise UnsupportedBackboneError(
            f"expected a Transformer at the root of the folder as the first module in {MODULES}, "
            f"got {modules[:1]}; load it with a current sentence-transformers and save it again"
        )
    return modules


def read_max_tokens(
    read: ReadJson, definition: Mapping[str, Any], settings: Mapping[str, Any]
) -> int | None:
    named = next((name for name in ENCODER_CONFIGS if read(name) is not None), ENCODER_CONFIGS[0])
    module = json_object(read, named)
    for name in CHANGES_READING:
        if module.get(name):
            raise UnsupportedBackboneError(
                f"{named} sets {name} to {str(module[name])[:80]!r}, which may change what the "
                "encoder reads; remove it in a copy of the folder if it does not"
            )
    if module.get("do_lower_case") and not _lowercases(definition):
        raise UnsupportedBackboneError(
            f"{named} sets do_lower_case, but the normalizer in tokenizer.json keeps upper case; "
            "load the folder with sentence-transformers, save its tokenizer again, and remove "
            "do_lower_case"
        )
    length = module.get("max_seq_length")
    if length is None:
        length = settings.get("model_max_length", settings.get("max_len"))
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or length < 1:
        raise CorruptBackboneError(
            f"the longest text must be a positive number of tokens, got {length!r} in {named} or "
            "tokenizer_config.json"
        )
    # "No limit" is a number of about 1e30.
    return int(length) if length < 10**9 else None


def check_prompt(general: Mapping[str, Any]) -> None:
    """Refuse a prompt that sentence-transformers puts before every text."""
    name = general.get("default_prompt_name")
    prompts: object = general.get("prompts")
    prompt = cast("dict[object, object]", prompts).get(name) if isinstance(prompts, dict) else None
    if prompt:
        raise UnsupportedBackboneError(
            f"{SENTENCE_CONFIG} puts the prompt {str(prompt)[:80]!r} before every text; set "
            "default_prompt_name to null in a copy of the folder and send texts with their prompt"
        )


def json_object(read: ReadJson, name: str) -> dict[str, Any]:
    found = read(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CorruptBackboneError(f"{name} must hold a JSON object, got {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _check_general(general: Mapping[str, Any]) -> None:
    check_prompt(general)
    if general.get("truncate_dim") is not None:
        raise UnsupportedBackboneError(
            f"{SENTENCE_CONFIG} shortens vectors to {general['truncate_dim']} values; set "
            "truncate_dim to null in a copy of the folder and shorten the vectors yourself"
        )


def _pooling(read: ReadJson, path: str) -> Pooling:
    name = f"{path}/config.json"
    modes = _modes(json_object(read, name))
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UnsupportedBackboneError(
            f"{name} must name one pooling out of {', '.join(POOLINGS)}, got {', '.join(modes)}; "
            f"{PLAIN}"
        )
    return POOLINGS[modes[0]]


def _modes(config: Mapping[str, Any]) -> Sequence[str]:
    named = config.get("pooling_mode")
    if named is not None:
        modes = cast("list[object]", named) if isinstance(named, list) else [named]
        return [str(mode) for mode in modes]
    # Without a setting, sentence-transformers uses the mean.
    return [mode for flag, mode in FLAGS.items() if config.get(flag)] or ["mean"]


def _lowercases(definition: Mapping[str, Any]) -> bool:
    found: object = definition.get("normalizer")
    normalizer = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    parts = cast("Sequence[Mapping[str, Any]]", normalizer.get("normalizers") or [normalizer])
    return any(it.get("type") == "Lowercase" or it.get("lowercase") for it in parts)
