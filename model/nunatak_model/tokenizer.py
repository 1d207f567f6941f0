"""Texts to encodings, by the backbone's own `tokenizer.json`."""

import hashlib
import threading
from collections.abc import Sequence

from tokenizers import Tokenizer

from nunatak_model.encoding import Encoding, TextInput


class TextTokenizer:
    """The backbone's tokenizer; may be called from several threads at once."""

    def __init__(self, definition: bytes, *, num_token_types: int) -> None:
        self.digest = hashlib.sha256(definition).hexdigest()
        self._definition = definition.decode()
        self._num_token_types = num_token_types
        self._by_length: dict[int, Tokenizer] = {}
        self._lock = threading.Lock()

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize texts or pairs, special tokens included.

        What exceeds `max_length` tokens is cut, from the longer text of a pair first. The texts
        must hold no lone surrogates. The work is done in Rust, without the interpreter's lock.
        """
        tokenizer = self._truncating_at(max_length)
        return [
            Encoding(
                token_ids=tuple(found.ids),
                type_ids=tuple(min(kind, self._num_token_types - 1) for kind in found.type_ids),
            )
            for found in tokenizer.encode_batch_fast(list(inputs))
        ]

    def _truncating_at(self, max_length: int) -> Tokenizer:
        # Truncation is state of a `Tokenizer`: one instance per length keeps callers apart.
        with self._lock:
            tokenizer = self._by_length.get(max_length)
            if tokenizer is None:
                tokenizer = Tokenizer.from_str(self._definition)
                tokenizer.no_padding()
                # The default strategy cuts the longer text first; the stub leaves it untyped.
                tokenizer.enable_truncation(max_length)  # pyright: ignore[reportUnknownMemberType]
                self._by_length[max_length] = tokenizer
            return tokenizer
