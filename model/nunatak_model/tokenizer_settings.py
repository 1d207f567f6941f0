"""How transformers reads a text by the files of a folder: `tokenizer.json` and the settings.

The rules are the rules of transformers 5, which rebuilds a tokenizer of a specific class from the
vocabulary, so that settings override `tokenizer.json`. The general class takes `tokenizer.json`
unchanged. For a BERT folder that has only `vocab.txt`, this file writes the `tokenizer.json`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError

TOKENIZER, TOKENIZER_CONFIG, VOCABULARY = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = "special_tokens_map.json", "added_tokens.json"
"""Files that old releases of transformers write next to `vocab.txt`."""
FILES = (TOKENIZER, TOKENIZER_CONFIG, VOCABULARY, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)
ReadFile = Callable[[str], bytes | None]
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
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
    "qwen3": "Qwen2Tokenizer",
    "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer",
}
"""transformers' default class for a `model_type`, if no file names a class."""
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
"""The parts of Qwen2Tokenizer in transformers, as tokenizer.json writes them."""
MODEL_FLAGS = frozenset({"dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"})
"""Settings of the vocabulary that decide tokens."""
BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
"""Names of one class of transformers."""
PARTS_OF_OPTIONS = {
    "normalizer": ("do_lower_case", '"Lowercase"', '"lowercase": true'),
    "pre_tokenizer": ("split_by_punct", '"Punctuation"'),
}
"""Parts of `tokenizer.json`, each with an option of DeBERTa and what the option puts there."""
GIVES_TYPES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer"), True),
    **dict.fromkeys(("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"), False),
    **dict.fromkeys(("DistilBertTokenizer", "MPNetTokenizer", "BertJapaneseTokenizer"), False),
    **dict.fromkeys(("TokenizersBackend", "PreTrainedTokenizer"), False),
}
"""Whether a class (without `Fast`) gives token types if the settings name no inputs."""


def gives_token_types(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Without token types, every token has type 0."""
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
    """Refuse settings that make transformers read texts differently from `tokenizer.json`."""
    _check_truncation(settings, definition)
    _check_tokens(settings, definition)
    tokenizer_class = _class_of(config, settings)
    if tokenizer_class in {*BERT_CLASSES, "MPNetTokenizer"}:
        _check_normalizer(settings, _section(definition, "normalizer"))
    if tokenizer_class in {*BERT_CLASSES, "MPNetTokenizer", "RobertaTokenizer"}:
        _check_frame(settings, _section(definition, "post_processor"))
    if tokenizer_class in {"RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"}:
        _check_prefix_space(settings, _section(definition, "pre_tokenizer"))
        _check_options(tokenizer_class, {}, definition)  # these classes have none
    if tokenizer_class == "DebertaV2Tokenizer":
        _check_options(tokenizer_class, settings, definition)
        _check_rebuilt(tokenizer_class, _deberta_parts(settings, definition), definition)
    if tokenizer_class == "Qwen2Tokenizer":
        _check_rebuilt(tokenizer_class, _qwen_parts(), definition)
    if tokenizer_class == "LlamaTokenizer":
        _check_rebuilt(tokenizer_class, _llama_parts(settings), definition)
    if {"add_bos_token", "add_eos_token"} & settings.keys():
        _check_ends(settings, definition)


def definition_of(
    read: ReadFile, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> bytes | None:
    """The `tokenizer.json` of a folder, or the one that its `vocab.txt` amounts to."""
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
    """The settings that add to BERT's own tokens, or that change their ids."""
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


def _check_tokens(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> None:
    """Refuse tokens that transformers reads in a text, and `tokenizer.json` does not."""
    model = _section(definition, "model")
    words = cast("Iterable[Any]", model.get("vocab") or ())
    known = {it if isinstance(it, str) else it[0] for it in words}
    known |= {it["content"] for it in definition.get("added_tokens") or ()}
    more: list[Any] = [settings.get(it) for it in (*MORE_TOKENS, ADDED_TOKENS)]
    named = [settings.get(it) for it in (*SPECIAL_TOKENS, "bos_token", "eos_token")]
    for several in more:
        listed: Any = [*several.values()] if isinstance(several, dict) else several
        named += listed if isinstance(listed, list) else [listed]
    problems = [f"the token {it!r}" for it in map(_content, named) if it and it not in known]
    unknown, ours = _content(settings.get("unk_token")), model.get("unk_token")
    if unknown and ours and unknown != ours:
        problems.append(f"unk_token={unknown!r}")
    if settings.get("split_special_tokens"):
        problems.append("split_special_tokens=True")
    if problems:
        raise UnsupportedBackboneError(
            f"{TOKENIZER_CONFIG} means {', '.join(problems[:5])}, and tokenizer.json does not; "
            f"remove what the model was not trained with in a copy of the folder, or {SAVE_ADVICE}"
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
    if stored.get("type") == "ByteLevel":
        wanted, found = bool(settings.get("add_prefix_space")), bool(stored.get("add_prefix_space"))
    else:
        wanted = settings.get("add_prefix_space") is not False
        found = wanted or '"never"' not in json.dumps(stored)
    if wanted != found:
        raise UnsupportedBackboneError(
            f"{TOKENIZER_CONFIG} means add_prefix_space={wanted}, tokenizer.json has {found}; "
            f"write 'add_prefix_space' into {TOKENIZER_CONFIG} as the model was trained, load the "
            "tokenizer with transformers and save it again"
        )


def _check_rebuilt(
    tokenizer_class: str, wanted: Mapping[str, object], definition: Mapping[str, Any]
) -> None:
    """Refuse parts of `tokenizer.json` in whose place this class of transformers puts others."""
    model = _section(definition, "model")
    found = {name: model.get(name) for name in wanted.keys() & MODEL_FLAGS}
    found |= {name: _plain(definition.get(name)) for name in wanted.keys() - MODEL_FLAGS}
    differing = sorted(name for name, part in wanted.items() if (found[name] or None) != part)
    _check_none(tokenizer_class, differing)


def _check_options(
    tokenizer_class: str, settings: Mapping[str, Any], definition: Mapping[str, Any]
) -> None:
    """Refuse lower case and split punctuation that this class of transformers does not make."""
    if _section(definition, "model").get("type") != "WordPiece":  # which none of the classes reads
        stored = {part: json.dumps(definition.get(part)) for part in PARTS_OF_OPTIONS}
        differing = [
            part
            for part, (option, *marks) in PARTS_OF_OPTIONS.items()
            if any(mark in stored[part] for mark in marks) != bool(settings.get(option))
        ]
        _check_none(tokenizer_class, differing)


def _check_none(tokenizer_class: str, differing: Sequence[str]) -> None:
    if differing:
        raise UnsupportedBackboneError(
            f"transformers' {tokenizer_class} puts another {', '.join(differing)} in the place of "
            f"what tokenizer.json has; set tokenizer_class to 'TokenizersBackend' in "
            f"{TOKENIZER_CONFIG} if tokenizer.json is right, or {SAVE_ADVICE}"
        )


def _plain(part: object) -> object:
    if isinstance(part, list):
        return [_plain(it) for it in cast("list[object]", part)]
    if not isinstance(part, dict):
        return part
    settings = cast("dict[str, object]", part)
    return {name: _plain(it) for name, it in settings.items() if name != "trim_offsets"}


def _deberta_parts(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, object]:
    if _section(definition, "model").get("type") == "WordPiece":  # which the class does not read
        return {}
    lowercase = [{"type": "Lowercase"}] if settings.get("do_lower_case") else []
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}
    end = {"type": "Strip", "strip_left": False, "strip_right": True}
    parts = [*lowercase, spaces, {"type": "NFC"}, end]
    return {"normalizer": {"type": "Sequence", "normalizers": parts}}


def _qwen_parts() -> dict[str, object]:
    split = {
        "type": "Split",
        "pattern": {"Regex": QWEN_WORDS},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, QWEN_BYTES]},
        **dict.fromkeys(MODEL_FLAGS),
    }


def _llama_parts(settings: Mapping[str, Any]) -> dict[str, object]:
    scheme = "always" if settings.get("legacy") else "first"
    if settings.get("add_prefix_space") is False:
        scheme = "never"
    spaces = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": scheme,
        "split": False,
    }
    flags = dict.fromkeys(MODEL_FLAGS) | {"fuse_unk": True, "byte_fallback": True}
    return {"normalizer": None, "pre_tokenizer": spaces, **flags}


def _check_ends(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> None:
    begin, end = (
        [_content(settings.get(f"{name}_token"))] if settings.get(f"add_{name}_token") else []
        for name in ("bos", "eos")
    )
    # Without such a token, transformers adds none.
    begin, end = [it for it in begin if it], [it for it in end if it]
    single = [*begin, "A", *end]
    wanted = (single, [*single, *begin, "B", *end])
    found = _frames(_section(definition, "post_processor"))
    if found != wanted:
        names = ("add_bos_token", "add_eos_token")
        asked = ", ".join(f"{name}={settings[name]}" for name in names if name in settings)
        raise UnsupportedBackboneError(
            f"{TOKENIZER_CONFIG} means {asked}, which makes transformers replace the special "
            "tokens around texts that tokenizer.json has; remove these settings in a copy of the "
            f"folder if tokenizer.json is right, or {SAVE_ADVICE}"
        )


def _check_frame(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse other tokens around a text: transformers takes those that the settings name."""
    if "cls" in stored:
        single = [stored["cls"][0], stored["sep"][0]]
    else:
        single, _ = _frames(stored) or ([""], [])
    for name, ours in (("cls_token", single[0]), ("sep_token", single[-1])):
        if settings.get(name) and _content(settings[name]) != ours:
            raise UnsupportedBackboneError(
                f"{TOKENIZER_CONFIG} means {name}={_content(settings[name])!r} around a text, and "
                f"tokenizer.json has {ours!r}; correct the one with which the model was not "
                f"trained in a copy of the folder, or {SAVE_ADVICE}"
            )


def _content(token: object) -> str:
    named = cast("dict[str, object]", token).get("content") if isinstance(token, dict) else token
    return str(named or "")


def _frames(processor: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    match processor.get("type"):
        case None | "ByteLevel":
            return ["A"], ["A", "B"]
        case "Sequence":
            parts = cast("list[Mapping[str, Any]]", processor.get("processors", []))
            found = [_frames(it) for it in parts if it.get("type") != "ByteLevel"]
            return found[0] if len(found) == 1 else None
        case "TemplateProcessing":
            return _pieces(processor["single"]), _pieces(processor["pair"])
        case _:
            return None


def _pieces(template: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(value["id"]) for piece in template for value in piece.values()]


def _either(value: object, default: object) -> bool:
    return bool(default if value is None else value)
