"""Masked language modelling: which tokens of a text are hidden.

Devlin et al. 2019 (arXiv:1810.04805), sec. 3.1, task 1.
"""

# torch types some of its methods partly.
# pyright: reportUnknownMemberType=false

from dataclasses import dataclass, replace
from itertools import count
from typing import cast

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_model import Encoding, TextTokenizer
from nunatak_training.errors import InvalidRecipeError

MASKS = ("[MASK]", "<mask>")
MASKED, REPLACED = 0.8, 0.1
"""Of the chosen tokens: shown as the mask token, shown as a random one; the rest is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText:
    """A text with tokens hidden, and what stood there."""

    encoding: Encoding
    places: Int[Tensor, " chosen"]
    token_ids: Int[Tensor, " chosen"]


class Masking:
    """Hides tokens, never special ones, by a random state of its own."""

    def __init__(
        self, tokenizer: TextTokenizer, *, masked_share: float, generator: torch.Generator
    ) -> None:
        """Read the vocabulary.

        Raises:
            InvalidRecipeError: it has no mask token.
        """
        vocabulary = Tokenizer.from_str(tokenizer.definition)
        masks = [vocabulary.token_to_id(mask) for mask in MASKS]
        found = next((mask for mask in masks if mask is not None), None)
        if found is None:
            raise InvalidRecipeError(
                f"tapt needs a mask token ({' or '.join(MASKS)}), which the backbone's vocabulary "
                "lacks; leave tapt out"
            )
        added = vocabulary.get_added_tokens_decoder()
        self._mask_id: int = found
        marked = {number for number, token in added.items() if token.special}
        # What frames a text is special, also where the vocabulary does not mark it so.
        self._special = frozenset({found, *marked, *vocabulary.encode("").ids})
        self._ordinary = torch.tensor(sorted({*vocabulary.get_vocab().values()} - self._special))
        self._masked_share = masked_share
        self._generator = generator

    def hide(self, encoding: Encoding) -> MaskedText | None:
        """Hide each token with the probability asked for; at least one, if the text has any.

        The papers let a short text go by without a hidden token; it would then teach nothing.
        """
        readable = [
            place for place, it in zip(count(), encoding.token_ids) if it not in self._special
        ]
        if not readable:
            return None
        draws = torch.rand(len(readable), generator=self._generator)
        chosen = draws < self._masked_share
        chosen[draws.argmin()] = True
        places = torch.tensor(readable)[chosen]
        token_ids = torch.tensor(encoding.token_ids)
        shown = self._shown(token_ids, places)
        return MaskedText(
            encoding=replace(encoding, token_ids=tuple(cast("list[int]", shown.tolist()))),
            places=places,
            token_ids=token_ids[places],
        )

    def _shown(
        self, token_ids: Int[Tensor, " tokens"], places: Int[Tensor, " chosen"]
    ) -> Int[Tensor, " tokens"]:
        num_chosen = len(places)
        fate = torch.rand(num_chosen, generator=self._generator)
        picks = torch.randint(len(self._ordinary), (num_chosen,), generator=self._generator)
        shown = torch.where(fate < MASKED, self._mask_id, token_ids[places])
        shown = torch.where(fate >= 1 - REPLACED, self._ordinary[picks], shown)
        return token_ids.scatter(0, places, shown)
