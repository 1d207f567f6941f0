import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import DRAFT_BACKBONE
from doubles.leases import settle
from doubles.refusals import raises
from doubles.trained_tokenizers import TokenizerFamily, served
from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input, Query, Question
from nunatak_model import Encoding, TextInput, TextTokenizer
from nunatak_server.tokenization import (
    CHARS_A_TEXT,
    MAX_CHARS_A_CHUNK,
    MAX_CHARS_ON_LOOP,
    Encodings,
    Extent,
    Reading,
    Tokenization,
    check_texts,
    default_stride,
    extent_of,
    find_cut,
    find_misfit,
)

REFUSED = {
    "empty": ("", "empty_text"),
    "white-space": (" \t\n\u00a0\u2003", "empty_text"),
    "nul": ("a\0b", "invalid_text"),
    "lone-surrogate": ("a\ud800b", "invalid_text"),
    "reversed-surrogates": ("\udc00\ud800", "invalid_text"),
    "too-long": ("a" * 101, "text_too_long"),
}
LONGEST_PLAIN = 1000
QUESTION = Question(question="who?", context="ann")
QUERY = Query(query="who?", documents=("ann", "bob"))
FITTING: dict[HeadKind, list[Input]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: ["ann", ("ann", "bob")],
    HeadKind.TOKEN_CLASSIFICATION: ["ann"],
    HeadKind.QUESTION_ANSWERING: [QUESTION],
    HeadKind.RANKING: [QUERY],
}


class Named(StrEnum):
    ANN = "ann"


ALL: list[Input] = ["ann", Named.ANN, ("ann", "bob"), QUESTION, QUERY]


class SpyEncoder(TextTokenizer):
    """Encodes characters, and remembers where it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    @property
    def literal(self) -> "SpyEncoder":
        return self

    def finds_special(self, encoding: Encoding) -> bool:
        return encoding.num_tokens > LONGEST_PLAIN

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        self.calls.append((threading.current_thread().name, max_length))
        return [
            Encoding(token_ids=tuple(range(max_length)), type_ids=(0,) * max_length) for _ in inputs
        ]

    def encode_all(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[tuple[Encoding, ...]]:
        return self.encode_windows(inputs, max_length=max_length, stride=stride)

    def encode_windows(
        self,
        inputs: Sequence[TextInput],
        *,
        max_length: int,
        stride: int,
        start: tuple[int, int] = (0, 0),
    ) -> list[tuple[Encoding, ...]]:
        del start
        whole = self.encode(inputs, max_length=max_length)
        return [(encoding,) * (stride + 1) for encoding in whole]


def a_reading(max_length: int, *, stride: int | None = None) -> Reading:
    return Reading(max_length=max_length, stride=stride, backbone=DRAFT_BACKBONE)


async def encoded(
    encoder: TextTokenizer, inputs: Sequence[Input], *readings: Reading
) -> Mapping[Reading, list[Encodings]]:
    with closing(Tokenization({DRAFT_BACKBONE: encoder}, num_threads=2)) as tokenization:
        return await tokenization.encode(inputs, readings=readings, caller="anna")


@pytest.mark.parametrize(("text", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_texts_that_cannot_be_read_are_refused(text: str, code: str) -> None:
    for item in (
        text,
        ("fine", text),
        (text, "fine"),
        Question(question=text, context="fine"),
        Question(question="fine", context=text),
        Query(query="fine", documents=("fine", text)),
    ):
        with raises(code, match="input 1"):
            check_texts(["fine", item], max_chars=100)


@pytest.mark.parametrize(
    "text", ["a", "a" * 100, "\N{GRINNING FACE}", "\u200d", "\ufeffx", "e\u0301"]
)
def test_texts_that_can_be_read_pass(text: str) -> None:
    check_texts([text, (text, text)], max_chars=100)


async def test_inputs_are_encoded_once_per_reading() -> None:
    encoder = SpyEncoder()
    short, long = a_reading(4), a_reading(8)

    encodings = await encoded(encoder, ["x", "y"], short, long, short)

    lengths = {
        reading: [[encoding.num_tokens for encoding in item] for item in items]
        for reading, items in encodings.items()
    }
    assert lengths == {short: [[4], [4]], long: [[8], [8]]}
    assert sorted(length for _, length in encoder.calls) == [4, 8]


@pytest.mark.parametrize(
    "inputs",
    [
        ["x" * (MAX_CHARS_ON_LOOP + 1)],
        ["x"] * (MAX_CHARS_ON_LOOP // CHARS_A_TEXT + 1),
        [("x" * MAX_CHARS_ON_LOOP, "x")],
        [Query(query="x" * (MAX_CHARS_ON_LOOP // 2), documents=("a", "b"))],
    ],
    ids=["text", "texts", "pair", "query of each document"],
)
async def test_only_what_is_short_is_encoded_on_the_event_loop(inputs: Sequence[Input]) -> None:
    encoder, longest = SpyEncoder(), ["x" * MAX_CHARS_ON_LOOP]

    await encoded(encoder, longest, a_reading(4))
    await encoded(encoder, inputs, a_reading(4))
    await encoded(encoder, longest, a_reading(4), a_reading(8))

    short, *long = (thread for thread, _ in encoder.calls)
    assert short == threading.current_thread().name
    assert all(it.startswith("nunatak-tokenize") for it in long)


class HeldUpEncoder(SpyEncoder):
    """Encodes when allowed, and remembers the first character of every text."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.batches: list[str] = []

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        self.may_go_on.wait(timeout=30)
        self.batches.append("".join(text[0][0] for text in inputs))
        return super().encode(inputs, max_length=max_length)


async def test_a_text_waits_for_one_turn_of_each_other_caller_at_most() -> None:
    encoder = HeldUpEncoder()
    tokenization = Tokenization({DRAFT_BACKBONE: encoder}, num_threads=1)
    readings = [a_reading(4), a_reading(4, stride=2)]

    async def encode(caller: str, texts: Sequence[str]) -> None:
        await tokenization.encode(texts, readings=readings, caller=caller)

    def ask(caller: str, texts: Sequence[str]) -> asyncio.Task[None]:
        return asyncio.create_task(encode(caller, texts))

    loud = [ask(name, [name * MAX_CHARS_A_CHUNK] * 4) for name in "ab" for _ in range(3)]
    await settle()
    quiet = ask("quiet", ["q" * (MAX_CHARS_ON_LOOP + 1)])
    await settle()
    encoder.may_go_on.set()
    await quiet
    first = list(encoder.batches)
    await asyncio.gather(*loud)
    tokenization.close()

    assert first.index("q") <= 2
    assert sorted(encoder.batches) == sorted([*"ab" * 24, "q", "q"])


async def test_a_request_that_is_given_up_is_encoded_no_further() -> None:
    encoder = HeldUpEncoder()
    tokenization = Tokenization({DRAFT_BACKBONE: encoder}, num_threads=1)
    reading = a_reading(4)
    texts = ["g" * MAX_CHARS_A_CHUNK] * 50
    asking = asyncio.create_task(tokenization.encode(texts, readings=[reading], caller="gone"))
    await settle()

    asking.cancel()
    await settle()
    encoder.may_go_on.set()
    await tokenization.encode(["k" * MAX_CHARS_A_CHUNK], readings=[reading], caller="kept")
    tokenization.close()

    assert encoder.batches == ["g", "k"]


@pytest.mark.parametrize("num_texts", [1, 7, 64])
async def test_texts_encoded_in_turns_are_encoded_as_at_once(num_texts: int) -> None:
    tokenizer = tiny_backbone().tokenizer
    texts = [" ".join(f"w{index}" for _ in range(300)) for index in range(num_texts)]
    whole, windows = a_reading(16), a_reading(16, stride=4)
    aligned = replace(windows, is_aligned=True)

    found = await encoded(tokenizer, texts, whole, windows, aligned)

    assert [item for (item,) in found[whole]] == tokenizer.encode(texts, max_length=16)
    assert found[windows] == tokenizer.encode_all(texts, max_length=16, stride=4)
    assert found[aligned] == tokenizer.encode_windows(texts, max_length=16, stride=4)
    assert all(it.alignment is None for item in found[windows] for it in item)
    assert all(it.alignment is not None for item in found[aligned] for it in item)


@pytest.mark.parametrize("is_aligned", [False, True])
async def test_special_tokens_in_a_text_are_text_for_a_literal_reading(*, is_aligned: bool) -> None:
    tokenizer = served(TokenizerFamily.BERT)
    plain = replace(a_reading(64, stride=4), is_aligned=is_aligned)
    literal = replace(plain, is_literal=True)
    texts = ["a", "hello [SEP] you", "b " * MAX_CHARS_ON_LOOP]

    found = await encoded(tokenizer, texts, plain, literal)

    assert found[plain][::2] == found[literal][::2]
    assert any(map(tokenizer.finds_special, found[plain][1]))
    assert not any(map(tokenizer.finds_special, found[literal][1]))


async def test_a_text_whose_special_tokens_cannot_be_read_as_text_is_refused() -> None:
    reading = replace(a_reading(LONGEST_PLAIN + 1), is_literal=True)

    with raises("invalid_text", match="a special token"):
        await encoded(SpyEncoder(), ["a"], reading)


async def test_the_position_of_a_text_that_is_too_long_counts_inputs() -> None:
    tokenizer = tiny_backbone().tokenizer
    reading = a_reading(16)
    long = "a " * 40
    inputs = ["a", "a", Query(query="q", documents=("a", long))]

    found = await encoded(tokenizer, inputs, reading)
    refused = find_cut(found[reading], max_length=16)

    assert refused is not None
    (whole,) = tokenizer.encode([("q", long)], max_length=500)
    fields = {"position": 2, "num_tokens": whole.num_tokens, "limit": 16}
    assert refused.fields == fields
    for told in (f"{whole.num_tokens} tokens", "at most 16", "on_long"):
        assert told in str(refused)


class GivesUp(SpyEncoder):
    """An encoder that gives up on every text with a `!`."""

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        for position, text in enumerate(inputs):
            if "!" in text:
                raise NunatakError("invalid_text", position=position, reason="a run")
        return super().encode(inputs, max_length=max_length)


@pytest.mark.parametrize("size", [1, MAX_CHARS_A_CHUNK])
async def test_the_position_of_a_text_that_no_tokenizer_reads_counts_inputs(size: int) -> None:
    inputs = [Query(query="q", documents=("a" * size, "b")), "c" * size, "d!"]

    with raises("invalid_text", match="input 2: the text contains"):
        await encoded(GivesUp(), inputs, a_reading(16))


@pytest.mark.parametrize("max_length", [9, 16, 40, 200])
@pytest.mark.parametrize("windows_are", ["plain", "aligned"])
def test_the_extent_of_an_input_counts_each_token_once(max_length: int, windows_are: str) -> None:
    tokenizer = tiny_backbone().tokenizer
    text, pair = "some words " * 9, ("who?", "some words " * 9)
    for item in (text, pair):
        encode = tokenizer.encode_windows if windows_are == "aligned" else tokenizer.encode_all
        (windows,) = encode([item], max_length=max_length, stride=max_length // 2)
        (whole,) = tokenizer.encode([item], max_length=500)
        (cut,) = tokenizer.encode([item], max_length=max_length)
        left_out = whole.num_tokens - cut.num_tokens

        extent = extent_of(windows)
        assert extent.num_tokens + extent.num_left_out == whole.num_tokens
        assert extent.is_windowed == (len(windows) > 1)
        assert extent_of((cut,)) == Extent(
            num_tokens=cut.num_tokens, num_left_out=left_out, is_windowed=False
        )
        assert extent_of((cut,)).is_cut == (left_out > 0)


async def test_each_input_keeps_its_documents_and_its_windows() -> None:
    whole, windows = a_reading(4), a_reading(4, stride=2)
    query = Query(query="q", documents=("a", "b", "c"))

    encodings = await encoded(SpyEncoder(), ["x", query], whole, windows)

    assert [len(item) for item in encodings[whole]] == [1, 3]
    assert [len(item) for item in encodings[windows]] == [3, 9]


def test_windows_share_at_most_half_of_their_length_by_default() -> None:
    assert [default_stride(length) for length in (8, 64, 256, 512)] == [4, 32, 128, 128]


@pytest.mark.parametrize("head", HeadKind)
def test_a_head_answers_its_own_kinds_of_input_and_no_other(head: HeadKind) -> None:
    assert find_misfit(FITTING[head], head, None) is None
    for item in ALL:
        error = find_misfit([*FITTING[head], item], head, None)
        assert (error is None) == (item in FITTING[head])
        if error is not None:
            assert error.fields["position"] == len(FITTING[head])
            assert error.fields["head"] == head.replace("_", " ")


@pytest.mark.parametrize(("reads", "item"), [(Reads.SINGLE, "ann"), (Reads.PAIR, ("ann", "bob"))])
def test_a_task_that_reads_one_form_of_text_refuses_the_other(reads: Reads, item: Input) -> None:
    head = HeadKind.SEQUENCE_CLASSIFICATION

    assert {it for it in ALL if find_misfit([it], head, reads) is None} == {item}
