"""How transformers reads a text by the files of a folder: `tokenizer.json` and the settings.

The rules are the rules of transformers 5, which rebuilds a tokenizer of a specific class from the
vocabulary, so that settings override `tokenizer.json`. The general class takes `tokenizer.json`
unchanged. For a BERT folder that has only `vocab.txt`, this file writes the `tokenizer.json`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError

TOKENIZER, TOKENIZER_CONFIG, VOCABULARY = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = "special_tokens_map.json", "added_tokens.json"
"""Files that old releases of transformers write next to `vocab.txt`."""
FILES = (TOKENIZER, TOKENIZER_CONFIG, VOCABULARY, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)
"""The files that decide how texts are read."""
ReadFile = Callable[[str], bytes | None]
"""Returns the bytes of a file by its name, or None if the folder has no such file."""
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
"""BERT's special tokens, by the names of their settings."""
OWN_TOKENS = tuple(SPECIAL_TOKENS.values())
ADDED_TOKENS = "added_tokens_decoder"
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
SAVE_ADVICE = (
    "load the tokenizer once with transformers' AutoTokenizer and save it with save_pretrained, "
    f"which writes {TOKENIZER}"
)
TYPES = "token_type_ids"
OWN_CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}
"""transformers' default class for a `model_type`, if no file names a class."""
BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer")
"""Classes that read `vocab.txt` alike."""
GIVES_TYPES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer"), True),
    **dict.fromkeys(("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"), False),
    **dict.fromkeys(("DistilBertTokenizer", "MPNetTokenizer", "BertJapaneseTokenizer"), False),
    **dict.fromkeys(("TokenizersBackend", "PreTrainedTokenizer"), False),
}
"""Whether a class (without `Fast`) gives token types if the settings name no inputs."""


def gives_token_types(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the tokenizer gives token types; without token types, every token has type 0.

    Args:
        config: the `config.json`.
        settings: the `tokenizer_config.json`; empty without this file.

    Raises:
        UnsupportedBackboneError: the class of the tokenizer is unknown.
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
        settings: the `tokenizer_config.json`; empty without this file.
        definition: the `tokenizer.json`.

    Raises:
        UnsupportedBackboneError: there is such a setting.
    """
    _check_truncation(settings, definition)
    tokenizer_class = _class_of(config, settings)
    if tokenizer_class in {*BERT_CLASSES, "MPNetTokenizer"}:
        _check_normalizer(settings, _section(definition, "normalizer"))
    if tokenizer_class == "RobertaTokenizer":
        _check_prefix_space(settings, _section(definition, "pre_tokenizer"))


def definition_of(
    read: ReadFile, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> bytes | None:
    """Return the `tokenizer.json` of a folder, or the one that its `vocab.txt` amounts to.

    Args:
        read: reads the files of the folder.
        config: the `config.json`.
        settings: the `tokenizer_config.json`, empty where there is none.

    Returns:
        Bytes of a `tokenizer.json`; None if the folder has neither file.

    Raises:
        UnsupportedBackboneError: `vocab.txt` is not all that decides the tokens.
        CorruptBackboneError: a file is broken.
    """
    stored = read(TOKENIZER)
    if stored is not None:
        return stored
    vocabulary = read(VOCABULARY)
    if vocabulary is None or _class_of(config, settings) not in BERT_CLASSES:
        return None
    named = {**_json_in(read, SPECIAL_TOKENS_FILE), **settings}
    try:
        words = vocabulary.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptBackboneError(f"{VOCABULARY} is no UTF-8: {error}") from error
    # As in transformers: the last of equal lines counts, without white space at its end.
    ids = {word.rstrip(): index for index, word in enumerate(words)}
    more = _more_tokens(named, ids)
    more += [ADDED_TOKENS_FILE] if _json_in(read, ADDED_TOKENS_FILE) else []
    if more:
        raise UnsupportedBackboneError(
            f"the folder has {VOCABULARY} without {TOKENIZER}, and it adds tokens to "
            f"{VOCABULARY} ({', '.join(more)}); {SAVE_ADVICE}"
        )
    return json.dumps(_bert_tokenizer(ids, settings), ensure_ascii=False).encode()


def _more_tokens(named: Mapping[str, Any], ids: Mapping[str, int]) -> list[str]:
    """Return the settings that add tokens to BERT's own tokens, or that change their ids."""
    more = [name for name in MORE_TOKENS if named.get(name)]
    added: Mapping[str, object] = named.get(ADDED_TOKENS) or {}
    if any(
        not any(_is_plain(it, token) and number == str(ids.get(token)) for token in OWN_TOKENS)
        for number, it in added.items()
    ):
        more.append(ADDED_TOKENS)
    more += [
        f"{name}={named[name]!r}"
        for name, token in SPECIAL_TOKENS.items()
        if not _is_plain(named.get(name, token), token)
    ]
    return more + [f"no {token} in {VOCABULARY}" for token in OWN_TOKENS if token not in ids]


def _is_plain(named: object, token: str) -> bool:
    """Whether a setting names this token, without rules for how texts are searched for it."""
    if not isinstance(named, dict):
        return named == token
    found = cast("dict[str, object]", named)
    return found.get("content") == token and not any(
        found.get(flag) for flag in ("single_word", "lstrip", "rstrip", "normalized")
    )


def _json_in(read: ReadFile, name: str) -> Mapping[str, Any]:
    data = read(name)
    try:
        found: object = {} if data is None else json.loads(data)
    except ValueError as error:
        raise CorruptBackboneError(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptBackboneError(f"{name} must hold a JSON object, got {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _bert_tokenizer(ids: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, object]:
    """Return the parts of transformers' BertTokenizer in the form of `tokenizer.json`."""
    start, end = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    first = [_special(start, 0), {"Sequence": {"id": "A", "type_id": 0}}, _special(end, 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, _special(end, 1)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = sorted((ids[token], token) for token in OWN_TOKENS)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": True} for index, token in added
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": bool(settings.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]}
                for token in (start, end)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": SPECIAL_TOKENS["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": dict(ids),
        },
    }


def _special(token: str, type_id: int) -> dict[str, object]:
    return {"SpecialToken": {"id": token, "type_id": type_id}}


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
            "transformers' class puts a BertNormalizer in its place; set tokenizer_class "
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
