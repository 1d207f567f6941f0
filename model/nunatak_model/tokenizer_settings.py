"""`tokenizer_config.json`: the settings that decide how transformers reads a text.

The rules are those of transformers 5. It rebuilds a tokenizer of a specific class from the
vocabulary, so that settings override `tokenizer.json`. The general class takes `tokenizer.json`
unchanged.
"""

from collections.abc import Mapping
from typing import Any, cast

from nunatak_model.errors import UnsupportedBackboneError

TOKENIZER_CONFIG = "tokenizer_config.json"
TYPES = "token_type_ids"
OWN_CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
"""The class that transformers takes for a `model_type` where no file names one."""
GIVES_TYPES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer"), True),
    **dict.fromkeys(("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"), False),
    **dict.fromkeys(("DistilBertTokenizer", "MPNetTokenizer", "BertJapaneseTokenizer"), False),
    **dict.fromkeys(("TokenizersBackend", "PreTrainedTokenizer"), False),
}
"""Whether a class (without `Fast`) gives token types if the settings name no inputs."""


def gives_token_types(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the encoder is given token types; without them, every token has type 0.

    Args:
        config: the `config.json`.
        settings: the `tokenizer_config.json`, empty where there is none.

    Raises:
        UnsupportedBackboneError: the class of the tokenizer is not known.
    """
    named = settings.get("model_input_names")
    if isinstance(named, list):
        return TYPES in named
    tokenizer_class = _class_of(config, settings)
    if tokenizer_class not in GIVES_TYPES:
        raise UnsupportedBackboneError(
            f"expected a tokenizer_class out of {', '.join(sorted(GIVES_TYPES))} in "
            f"{TOKENIZER_CONFIG}, got {tokenizer_class!r}, which may or may not give token types; "
            f"list model_input_names there, with or without {TYPES!r}"
        )
    return GIVES_TYPES[tokenizer_class]


def check_settings(
    config: Mapping[str, Any], settings: Mapping[str, Any], definition: Mapping[str, Any]
) -> None:
    """Refuse settings that make transformers read texts differently from `tokenizer.json`.

    Args:
        config: the `config.json`.
        settings: the `tokenizer_config.json`, empty where there is none.
        definition: the `tokenizer.json`.

    Raises:
        UnsupportedBackboneError: there is such a setting.
    """
    _check_truncation(settings, definition)
    tokenizer_class = _class_of(config, settings)
    if tokenizer_class == "BertTokenizer":
        _check_normalizer(settings, _section(definition, "normalizer"))
    if tokenizer_class == "RobertaTokenizer":
        _check_prefix_space(settings, _section(definition, "pre_tokenizer"))


def _class_of(config: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    own = OWN_CLASSES.get(str(config.get("model_type")), "TokenizersBackend")
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or own
    return str(named).removesuffix("Fast")


def _section(definition: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = definition.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _check_truncation(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> None:
    stored = str(_section(definition, "truncation").get("direction", "right")).lower()
    side = settings.get("truncation_side", stored)
    if side != "right":
        raise UnsupportedBackboneError(
            f"expected long texts to be cut on the right, got truncation_side={side!r} in "
            f"{TOKENIZER_CONFIG} or tokenizer.json; set it to 'right' in a copy of the folder if "
            "no text will be cut"
        )


def _check_normalizer(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    lowercase = bool(settings.get("do_lower_case", True))
    wanted = {
        "do_lower_case": lowercase,
        "strip_accents": _either(settings.get("strip_accents"), lowercase),
        "tokenize_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
    }
    found = {
        "do_lower_case": bool(stored.get("lowercase")),
        "strip_accents": _either(stored.get("strip_accents"), bool(stored.get("lowercase"))),
        "tokenize_chinese_chars": bool(stored.get("handle_chinese_chars")),
    }
    if stored.get("type") != "BertNormalizer":
        raise UnsupportedBackboneError(
            f"expected a BertNormalizer in tokenizer.json, got {stored.get('type')!r}: "
            "transformers' BertTokenizer puts a BertNormalizer in its place; set tokenizer_class "
            f"to 'TokenizersBackend' in {TOKENIZER_CONFIG} if tokenizer.json is right"
        )
    for name, value in wanted.items():
        if found[name] != value:
            raise UnsupportedBackboneError(
                f"{TOKENIZER_CONFIG} means {name}={value}, tokenizer.json means "
                f"{name}={found[name]}; write {name!r} into {TOKENIZER_CONFIG} as the model was "
                "trained, load the tokenizer with transformers and save it again"
            )


def _check_prefix_space(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    if stored.get("type") != "ByteLevel":
        return
    wanted, found = bool(settings.get("add_prefix_space")), bool(stored.get("add_prefix_space"))
    if wanted != found:
        raise UnsupportedBackboneError(
            f"{TOKENIZER_CONFIG} means add_prefix_space={wanted}, tokenizer.json has {found}; "
            f"write 'add_prefix_space' into {TOKENIZER_CONFIG} as the model was trained, load the "
            "tokenizer with transformers and save it again"
        )


def _either(value: object, default: object) -> bool:
    return bool(default if value is None else value)
