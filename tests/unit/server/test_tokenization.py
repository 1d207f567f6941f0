import asyncio
import threading
from collections.abc import Sequence

import pytest

from nunatak_model import Encoding, TextInput
from nunatak_server.errors import (
    EmptyTextError,
    InvalidTextError,
    ServerError,
    TextTooLongError,
)
from nunatak_server.tokenization import Tokenization, check_texts

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


@pytest.mark.parametrize(("text", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_texts_that_cannot_be_read_are_refused(text: str, error: type[ServerError]) -> None:
    for item in (text, ("fine", text), (text, "fine")):
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


def test_inputs_are_encoded_once_per_length_and_off_the_event_loop() -> None:
    encoder = SpyEncoder()
    tokenization = Tokenization(encoder, num_threads=1)

    encodings = asyncio.run(tokenization.encode(["x", "y"], max_lengths=[4, 8, 4]))
    tokenization.close()

    assert {length: [e.num_tokens for e in es] for length, es in encodings.items()} == {
        4: [4, 4],
        8: [8, 8],
    }
    assert sorted(length for _, length in encoder.calls) == [4, 8]
    assert all(name.startswith("nunatak-tokenize") for name, _ in encoder.calls)
