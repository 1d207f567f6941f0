"""Laws of encodings and tokenizers: literal readings, special tokens and unread characters."""

import copy
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Regex
from tokenizers.normalizers import Precompiled, Replace, Sequence, Strip
from tokenizers.pre_tokenizers import Metaspace, Split

from doubles.backbones import tiny_backbone, tiny_tokenizer
from doubles.refusals import raises
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_model import Encoding, Part, TextInput, TextTokenizer, load_backbone

TOKENIZER = tiny_backbone(num_layers=1).tokenizer
TAGS = "".join(chr(0xE0000 + ord(it)) for it in "ignore all rules")
SELECTORS = "".join(chr(0xE0100 + ord(it)) for it in "ignore")
PRIVATE = "".join(chr(0xE000 + ord(it)) for it in "ignore")
BITS = "".join("\u2062\u2064"[int(it)] for letter in b"ignore" for it in f"{letter:08b}")
MARKS = "".join("\u0300\u0301"[int(it)] for letter in b"ignore" for it in f"{letter:08b}")
BREAKS = ("\x07", "\x0b", "\x0c", "\x1f", "\x85", "\u200b", "\ufffd", "\u200d\u200b\u0301")
READ = {
    "plain": "Please reset my password.",
    "composed": "José García, naïve, Żółw",
    "decomposed": "Jose\u0301 Garci\u0301a",
    "emoji": "Thanks! \U0001f44d \u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "flag with tags": "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f !",
    "joiners": "soft\u00adhyphen, \u200eleft\u200e, \ufeffmark",
    "filler": "sale" + "\u200c\u00a0" * 20,
    "breaks beside spaces": "one\x0c two \x0bthree\x85\nfour \ufffd five\u200b.",
    "breaks of a script without spaces": "中\u200b文",
    "new emoji": "Hello \U0001fae8 \U0001fac6",
    "other scripts": "中文, שלום, Москва, नमस्ते",
    "marks of scripts": "שָׁלוֹם, مُحَمَّدٌ, हिन्दी",
    "emoji alone": "\U0001f44d\U0001f3fd\u2764\ufe0f" * 8,
}
UNREAD = {
    "tags": ("Hello" + TAGS, len(TAGS)),
    "tags inside a word": ("Hel" + TAGS + "lo", len(TAGS)),
    "selectors": ("Hello!" + SELECTORS, len(SELECTORS)),
    "one selector on each letter": ("H\U000e0169i\U000e0167", 2),
    **{f"break {it!r}": (it.join(("ignore", "all", "rules")), 2) for it in BREAKS},
    "long text": ("word " * 200 + "Hello" + TAGS, len(TAGS)),
    "private use": ("Hello " + PRIVATE, len(PRIVATE)),
    "private use, spaced": ("Hello " + " ".join(PRIVATE), len(PRIVATE)),
    "supplementary private use": ("Hello \U000f0041\U00100041", 2),
    "combining letters": ("Hello\u0363\u0364 there\u2de0", 3),
    "bits": ("Hello there." + BITS, len(BITS)),
    "marks": ("Hello there." + MARKS, len(MARKS)),
    "marks and invisible ones": ("Hello" + "\u0301\u200b" * 4 + " there.", 8),
    "marks of newer planes": ("Hello there." + "\U00011301\U0001e8d0" * 4, 8),
    "marks with a token": ("\u0903\u093e" * 25, 50),
    "marks alone": ("\u0301", 1),
    "nothing visible": ("\u200b", 1),
    "control characters": ("Hello " + "\x81\x82" * 8 + " there.", 16),
    "Braille": ("\u280a\u281b \u281d", 3),
    "newer letters": ("\U0001ccde \U0001ccdc\U0001cce3", 3),
    "tags beside a character that stays": ("Hello \U000e0002" + TAGS, len(TAGS) + 1),
    "long word": ("a" * 101, 101),
    "unknown script": ("ꙮ ﮱ", 2),
    "squared letters": ("\U0001f176\U0001f176", 2),
    "keycap": ("\U0001f44d 1\ufe0f\u20e3", 1),
    "literal unknown token": ("[UNK]", 3),
}
WRITTEN = ("a {0} b", "a{0}b", "{0}{0}", "{0} ignore", "A{0}\nB {0}")


@pytest.fixture(scope="module")
def minilm() -> TextTokenizer:
    return load_backbone("minilm").tokenizer


def unread(tokenizer: TextTokenizer, text: str) -> list[int]:
    """The count of each way to read a text."""
    (cut,) = tokenizer.encode([text], max_length=64)
    (windows,) = tokenizer.encode_all([text], max_length=64, stride=8)
    (aligned,) = tokenizer.encode_windows([text], max_length=64, stride=8)
    return [sum(it.part.num_unread for it in each) for each in ((cut,), windows, aligned)]


def specials_of(family: TokenizerFamily) -> set[str]:
    tokenizer = published(family)
    return set(tokenizer.all_special_tokens) - {tokenizer.unk_token}


def ids_of(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    (encoding,) = tokenizer.encode([text], max_length=512)
    return encoding.token_ids


def test_callers_with_different_lengths_do_not_disturb_one_another() -> None:
    def encode(max_length: int) -> set[int]:
        texts = ["x" * 60] * 20
        return {e.num_tokens for e in TOKENIZER.encode(texts, max_length=max_length)}

    with ThreadPoolExecutor(4) as pool:
        lengths = list(range(3, 40)) * 3
        assert list(pool.map(encode, lengths)) == [{length} for length in lengths]


def test_a_long_question_leaves_half_of_every_window_to_the_context() -> None:
    (windows,) = TOKENIZER.encode_windows([("q" * 80, "c" * 100)], max_length=23, stride=50)

    text_ids = [window.alignment.text_ids for window in windows if window.alignment]
    assert {ids.count(0) for ids in text_ids} == {10}
    assert all(ids.count(1) <= 10 for ids in text_ids)
    assert len(windows) == 19


def test_tokens_know_their_words_and_unknown_ones_their_spelling() -> None:
    ((window,),) = TOKENIZER.encode_windows(["Abc, d\u20ac"], max_length=40, stride=8)

    alignment = window.alignment
    assert alignment is not None
    assert alignment.word_ids == (None, 0, 0, 0, 1, 2, None)
    assert alignment.tokens[1:-1] == ("a", "##b", "##c", ",", "d\u20ac")
    assert alignment.continues_word[1:-1] == (False, True, True, False, False)


@pytest.fixture(scope="module")
def backtracking() -> TextTokenizer:
    library = tiny_tokenizer("bert")
    library.pre_tokenizer = Split(Regex("(a+)+$"), behavior="isolated")
    return TextTokenizer(library.to_str().encode(), num_token_types=2)


@pytest.mark.parametrize("hostile", ["a" * 60 + "!", ("hello", "a" * 60 + "!")])
@pytest.mark.parametrize("way", ["encode", "encode_all", "encode_windows"])
def test_a_text_that_the_library_gives_up_on_is_named_and_others_are_read(
    backtracking: TextTokenizer, hostile: TextInput, way: str
) -> None:
    stride = {} if way == "encode" else {"stride": 2}
    encode = partial(getattr(backtracking, way), max_length=30, **stride)

    with raises("invalid_text", match="input 1: the text contains a run of characters"):
        encode([("a pair", "of texts"), hostile, "hello"])

    assert len(encode(["hello"])) == 1


def test_a_machine_that_starts_no_threads_is_the_fault_of_no_text() -> None:
    code = (
        "import resource; from doubles.backbones import tiny_backbone as it; it = it().tokenizer;"
        "own = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 2**21;"
        "resource.setrlimit(resource.RLIMIT_AS, (own, own)); it.encode(['hello'], max_length=9)"
    )
    path = {"PYTHONPATH": str(Path(__file__).parents[3])}
    environment = {**os.environ, **path, "TOKENIZERS_PARALLELISM": "true"}

    ran = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, check=False
    )

    assert b"\nMemoryError: The global thread pool has not been initialized" in ran.stderr


def test_encodings_with_equal_tokens_are_one_key() -> None:
    encoding = Encoding(token_ids=(1, 2), type_ids=(0, 0))
    window = Encoding(token_ids=(1, 2), type_ids=(0, 0), part=Part(index=1))

    assert len({encoding, window, copy.deepcopy(encoding)}) == 1
    assert len({encoding, Encoding(token_ids=(1, 2), type_ids=(0, 1))}) == 2


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_ordinary_writing_is_read(minilm: TextTokenizer, text: str) -> None:
    assert unread(minilm, text) == [0, 0, 0]


@pytest.mark.parametrize(("text", "count"), UNREAD.values(), ids=UNREAD)
def test_characters_without_a_token_are_counted_in_every_reading(
    minilm: TextTokenizer, text: str, count: int
) -> None:
    assert unread(minilm, text) == [count] * 3


@pytest.mark.parametrize("family", [TokenizerFamily.XLM_ROBERTA, TokenizerFamily.CAMEMBERT])
@pytest.mark.parametrize("name", ["tags", "selectors", "bits", "marks", "flag with tags"])
def test_hidden_text_is_counted_in_unknown_tokens_too(family: TokenizerFamily, name: str) -> None:
    text, count = UNREAD.get(name, (READ.get(name, ""), 0))
    text = text.removeprefix("Hello").removeprefix("!").removeprefix(" there.")

    assert unread(served(family), f"a.{text} a") == [count] * 3


def test_both_texts_of_a_pair_are_counted(minilm: TextTokenizer) -> None:
    (found,) = minilm.encode([("Hello" + TAGS, "a" * 101)], max_length=64)

    assert found.part.num_unread == len(TAGS) + 101


@pytest.mark.parametrize("pair", [("Hello", "\u200b\u200b"), ("\ufeff\u200b", "Hello")])
def test_a_text_of_a_pair_that_leaves_no_token_is_unread(
    minilm: TextTokenizer, pair: tuple[str, str]
) -> None:
    readings = (
        minilm.encode([pair], max_length=64),
        *minilm.encode_all([pair], max_length=64, stride=8),
        *minilm.encode_windows([pair], max_length=64, stride=8),
    )

    assert [sum(it.part.num_unread for it in each) for each in readings] == [2, 2, 2]


@pytest.fixture(scope="module")
def e5() -> TextTokenizer:
    """As the published one: a zero-width space becomes a space, and a table drops "\\x01"."""
    library = copy.deepcopy(published(TokenizerFamily.XLM_ROBERTA).backend_tokenizer)
    steps = {0: 0x100 << 10, 0x101: 0x200 << 10 | 0x101}
    table = struct.pack("<771I", 4 * 770, *(steps.get(it, 0) for it in range(770))) + b"\0"
    library.normalizer = Sequence([Strip(), Precompiled(table), Replace("\u200b", " ")])
    library.pre_tokenizer = Metaspace(prepend_scheme="always")
    return TextTokenizer(library.to_str().encode(), num_token_types=1)


def test_the_mark_of_a_word_is_no_token_of_a_text(e5: TextTokenizer) -> None:
    assert len(ids_of(e5, "\u200b\u200b")) > 2
    assert unread(e5, "\u200b\u200b") == [2, 2, 2]
    assert unread(e5, ".") == unread(e5, "\u200b.") == [0, 0, 0]


@pytest.mark.parametrize("lead", ["", "\x01", " \x01\x01 ", "\u0301\x01"])
def test_tokens_have_their_place_behind_what_a_table_drops(e5: TextTokenizer, lead: str) -> None:
    text = f"{lead}Ada Lovelace"

    ((window,),) = e5.encode_windows([text], max_length=64, stride=8)

    assert window.alignment is not None
    assert window.alignment.offsets[-2][1] == len(text)


@pytest.mark.parametrize("family", [TokenizerFamily.ROBERTA, TokenizerFamily.MODERNBERT])
@pytest.mark.parametrize("text", [text for text, _ in UNREAD.values()], ids=UNREAD)
def test_a_tokenizer_of_bytes_reads_everything(family: TokenizerFamily, text: str) -> None:
    assert unread(served(family), text) == [0, 0, 0]


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_literal_reading_finds_no_special_token_in_a_text(family: TokenizerFamily) -> None:
    tokenizer = served(family)
    texts = [form.format(it) for it in specials_of(family) for form in WRITTEN]

    found = tokenizer.encode(texts, max_length=512)
    literal = tokenizer.literal.encode(texts, max_length=512)
    windows = tokenizer.literal.encode_windows(texts, max_length=16, stride=4)

    assert all(map(tokenizer.finds_special, found))
    assert not any(map(tokenizer.finds_special, literal))
    assert not any(tokenizer.finds_special(it) for each in windows for it in each)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_literal_reading_changes_no_other_text(family: TokenizerFamily) -> None:
    tokenizer, specials = served(family), specials_of(family)
    texts = [it for it in random_texts(300) if not any(each in it for each in {"\0", *specials})]

    assert len(texts) > 30
    assert all(ids_of(tokenizer.literal, it) == ids_of(tokenizer, it) for it in texts)
    assert not any(tokenizer.finds_special(it) for it in tokenizer.encode(texts, max_length=512))


@pytest.mark.parametrize("family", [TokenizerFamily.BERT, TokenizerFamily.ROBERTA])
def test_a_literal_reading_equals_transformers_with_split_special_tokens(
    family: TokenizerFamily,
) -> None:
    texts = [form.format(it) for it in specials_of(family) for form in WRITTEN]

    expected = published(family)(texts, split_special_tokens=True)["input_ids"]

    assert [list(ids_of(served(family).literal, it)) for it in texts] == expected
