"""A tokenized text: what the encoder reads."""

from dataclasses import dataclass

TextInput = str | tuple[str, str]
"""A text, or a pair of texts that is read as one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Token ids and token types of one input; equal encodings are the same trunk row."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens, special tokens included."""
        return len(self.token_ids)
