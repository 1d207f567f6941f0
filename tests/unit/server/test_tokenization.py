import asyncio
import threading
from collections.abc import Sequence

import pytest

from doubles.backbones import tiny_backbone
from nunatak_model import Encoding, TextInput
from nunatak_server.errors import (
    EmptyTextError,
    InvalidTextError,
    ServerError,
    TextTooLongError,
    TooManyTokensError,
)
from nunatak_server.inputs import Query, Question
from nunatak_server.tokenization import Reading, Tokenization, check_texts, default_stride

REFUSED = {
    "empty": ("", EmptyTextError),
    "white-space": (" \t\n\u00a0\u2003", EmptyTextError),
    "nul": ("a\0b", InvalidTextError),
    "lone-surrogate": ("a\ud800b", InvalidTextError),
    "reversed-surrogates": ("\udc00\ud800", InvalidTextError),
    "too-long": ("a" * 101, TextTooLongError),
}


class SpyEncoder:
    """Encodes characters, and remembers where it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        self.calls.append((threading.current_thread().name, max_length))
        return [
            Encoding(token_ids=tuple(range(max_length)), type_ids=(0,) * max_length) for _ in inputs
        ]

    def encode_windows(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[tuple[Encoding, ...]]:
        whole = self.encode(inputs, max_length=max_length)
        return [(encoding,) * (stride + 1) for encoding in whole]


@pytest.mark.parametrize(("text", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_texts_that_cannot_be_read_are_refused(text: str, error: type[ServerError]) -> None:
    for item in (
        text,
        ("fine", text),
        (text, "fine"),
        Question(question=text, context="fine"),
        Question(question="fine", context=text),
        Query(query="fine", documents=("fine", text)),
    ):
        with pytest.raises(error, match="input 1"):
            check_texts(["fine", item], max_chars=100)


@pytest.mark.parametrize(
    "text", ["a", "a" * 100, "\N{GRINNING FACE}", "\u200d", "\ufeffx", "e\u0301"]
)
def test_texts_that_can_be_read_pass(text: str) -> None:
    check_texts([text, (text, text)], max_chars=100)


@pytest.mark.parametrize(("text", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_errors_never_repeat_the_text(text: str, error: type[ServerError]) -> None:
    canary = "swordfish"
    with pytest.raises(error) as refused:
        check_texts([text if not text.strip() else canary + text], max_chars=100)

    assert canary not in str(refused.value)


def test_inputs_are_encoded_once_per_reading_and_off_the_event_loop() -> None:
    encoder = SpyEncoder()
    tokenization = Tokenization(encoder, num_threads=1)
    short, long = Reading(max_length=4, stride=None), Reading(max_length=8, stride=None)

    encodings = asyncio.run(tokenization.encode(["x", "y"], readings=[short, long, short]))
    tokenization.close()

    lengths = {
        reading: [[encoding.num_tokens for encoding in item] for item in items]
        for reading, items in encodings.items()
    }
    assert lengths == {short: [[4], [4]], long: [[8], [8]]}
    assert sorted(length for _, length in encoder.calls) == [4, 8]
    assert all(name.startswith("nunatak-tokenize") for name, _ in encoder.calls)


def test_a_reading_that_does_not_truncate_takes_what_just_fits() -> None:
    async def scenario(length: int) -> None:
        tokenization = Tokenization(tiny_backbone().tokenizer, num_threads=1)
        fitting = Reading(max_length=length, stride=None, truncates=False)
        found = await tokenization.encode(["a b"], readings=[fitting])
        assert [item[0].num_tokens for item in found[fitting]] == [length]
        tight = Reading(max_length=length - 1, stride=None, truncates=False)
        with pytest.raises(TooManyTokensError) as refused:
            await tokenization.encode(["a", "a b"], readings=[tight])
        assert refused.value.position == 1
        tokenization.close()

    asyncio.run(scenario(4))


def test_each_input_keeps_its_documents_and_its_windows() -> None:
    tokenization = Tokenization(SpyEncoder(), num_threads=1)
    whole, windows = Reading(max_length=4, stride=None), Reading(max_length=4, stride=2)
    query = Query(query="q", documents=("a", "b", "c"))

    encodings = asyncio.run(tokenization.encode(["x", query], readings=[whole, windows]))
    tokenization.close()

    assert [len(item) for item in encodings[whole]] == [1, 3]
    assert [len(item) for item in encodings[windows]] == [3, 9]


def test_windows_share_at_most_half_of_their_length_by_default() -> None:
    assert [default_stride(length) for length in (8, 64, 256, 512)] == [4, 32, 128, 128]
