"""The tokenizer of a folder, as transformers builds it.

transformers builds a tokenizer of a specific class anew: the class and the settings override
`tokenizer.json`. These rules change with its releases, so transformers itself is asked. Only the
built-in backbone and what `nunatak backbone add` wrote are read without transformers.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue
from tokenizers import Tokenizer

from nunatak_contract.errors import needs_extra
from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError
from nunatak_model.text.tokenizer import TextTokenizer, check_bounds, check_token_ids, is_panic

TOKENIZER, TOKENIZER_CONFIG, VOCABULARY = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
ADDED_TOKENS_FILE = "added_tokens.json"
FILES = (TOKENIZER, TOKENIZER_CONFIG, VOCABULARY, "special_tokens_map.json", ADDED_TOKENS_FILE)
SLOW_FILES = ("vocab.json", "merges.txt", "*.model", "vocab.bpe", "bpe.codes")
READ_OF_CONFIG = ("model_type", "tokenizer_class", "transformers_version")
TYPES = "token_type_ids"
PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""Parts that decide token ids. Saved truncation and padding do not: each task has its length."""
SAVE_ADVICE = (
    "load the tokenizer once with transformers' AutoTokenizer and save it with save_pretrained, "
    f"which writes {TOKENIZER}"
)


def read_tokenizer(
    folder: Path, config: Mapping[str, Any], *, num_token_types: int
) -> TextTokenizer:
    """Read the tokenizer of a folder; `config` is the content of `config.json`.

    Raises:
        UnsupportedBackboneError: there is none, or transformers does what is not available here.
        CorruptBackboneError: a file is broken.
    """
    tokenizer = load_by_transformers(folder, config)
    stored = folder / TOKENIZER
    definition = definition_of(tokenizer, stored.read_bytes() if stored.exists() else None)
    gives_types = TYPES in tokenizer.model_input_names
    return text_tokenizer(definition, num_token_types=num_token_types, gives_types=gives_types)


def has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(it)) for it in (TOKENIZER, VOCABULARY, *SLOW_FILES))


def text_tokenizer(definition: bytes, *, num_token_types: int, gives_types: bool) -> TextTokenizer:
    """Without token types, every token has type 0."""
    try:
        return TextTokenizer(definition, num_token_types=num_token_types if gives_types else 1)
    except ValueError as error:
        raise CorruptBackboneError(str(error)) from error


def load_by_transformers(folder: Path, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - untyped
    """Let transformers build the tokenizer of a folder, without code of the folder."""
    with needs_extra("model"):
        from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds
    if not has_tokenizer(folder):
        # transformers would make an empty tokenizer.
        raise UnsupportedBackboneError(
            f"expected {TOKENIZER} or another file of a tokenizer, got none; {SAVE_ADVICE}"
        )
    _check_files(folder)
    try:
        with tempfile.TemporaryDirectory() as scratch, quiet():
            for pattern in (*FILES, *SLOW_FILES):
                for path in folder.glob(pattern):
                    (Path(scratch) / path.name).symlink_to(path.resolve())
            # What else the file says is about the model, and transformers might refuse it.
            kept = {name: it for name, it in config.items() if name in READ_OF_CONFIG}
            (Path(scratch) / "config.json").write_text(json.dumps(kept))
            tokenizer = cast("Any", AutoTokenizer).from_pretrained(
                scratch, trust_remote_code=False, local_files_only=True
            )
    except BaseException as error:  # the libraries have no common type, and Rust may panic
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnsupportedBackboneError(
            f"transformers cannot read its tokenizer ({reason}); check that the installed "
            f"transformers loads it, or {SAVE_ADVICE}"
        ) from error
    _check_reading(tokenizer)
    return tokenizer


def definition_of(tokenizer: Any, stored: bytes | None) -> bytes:  # noqa: ANN401 - untyped there
    """What transformers built, in the spelling of the stored `tokenizer.json` if it is the same."""
    built: str = tokenizer.backend_tokenizer.to_str()
    # What the library writes is normalised.
    if stored is None or differing_parts(normalised(stored.decode()), json.loads(built)):
        return built.encode()
    return stored


def differing_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The parts by which two normalised definitions may read a text differently."""
    return [part for part in PARTS if one.get(part) != other.get(part)]


def normalised(definition: str) -> dict[str, Any]:
    """A definition as the installed library writes it, so that old spellings become equal."""
    return json.loads(Tokenizer.from_str(definition).to_str())


@contextmanager
def quiet() -> Generator[None]:
    """Keep warnings, log lines and progress bars of transformers and peft off the terminal."""
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415 - seconds

    logger = logging.getLogger("transformers")
    level, shows_bars = logger.level, transformers_logging.is_progress_bar_enabled()
    logger.setLevel(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if shows_bars:
            transformers_logging.enable_progress_bar()


def _check_files(folder: Path) -> None:
    """Refuse what would take far more memory or work than a tokenizer, before anything reads it."""
    check_bounds(json_in(folder / TOKENIZER))
    for name in ("vocab.json", ADDED_TOKENS_FILE):
        check_token_ids(json_in(folder / name))
    settings = json_in(folder / TOKENIZER_CONFIG)
    added = settings.get("added_tokens_decoder") if isinstance(settings, dict) else None
    if isinstance(added, dict):
        check_token_ids([int(it) for it in added if it.isdecimal()])


def json_in(path: Path) -> JsonValue:
    """Give None if there is no such file."""
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except (ValueError, RecursionError) as error:
        raise CorruptBackboneError(f"{path.name} is no JSON: {error}") from error


def _check_reading(tokenizer: Any) -> None:  # noqa: ANN401 - untyped there
    """Refuse what `tokenizer.json` cannot say."""
    if not tokenizer.is_fast:
        raise UnsupportedBackboneError(
            f"its tokenizer {type(tokenizer).__name__} has no form as {TOKENIZER}; take a "
            "checkpoint whose tokenizer the tokenizers library can compute"
        )
    if tokenizer.truncation_side != "right":
        raise UnsupportedBackboneError(
            "expected long texts to be cut on the right, got truncation_side="
            f"{tokenizer.truncation_side!r} in {TOKENIZER_CONFIG} or {TOKENIZER}; set it to "
            "'right' in a copy of the folder if no text will be cut"
        )
    if tokenizer.split_special_tokens:
        raise UnsupportedBackboneError(
            f"expected special tokens in texts to be tokens, got split_special_tokens=True in "
            f"{TOKENIZER_CONFIG}; remove it in a copy of the folder if no text holds such tokens"
        )
