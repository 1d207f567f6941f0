"""Laws of encodings as keys."""

import copy

from nunatak_model import Encoding, Part


class CountedIds(tuple[int, ...]):
    """Token ids that count how often they are hashed."""

    __slots__ = ()
    num_hashes = 0

    def __hash__(self) -> int:
        CountedIds.num_hashes += 1
        return super().__hash__()


def test_an_encoding_hashes_its_tokens_once() -> None:
    encoding = Encoding(token_ids=CountedIds((1, 2)), type_ids=(0, 0))
    before = CountedIds.num_hashes

    found = {encoding: "trunk row"}

    assert found[encoding] == "trunk row"
    assert CountedIds.num_hashes == before


def test_encodings_with_equal_tokens_are_one_key() -> None:
    encoding = Encoding(token_ids=(1, 2), type_ids=(0, 0))
    window = Encoding(token_ids=(1, 2), type_ids=(0, 0), part=Part(index=1))

    assert len({encoding, window, copy.deepcopy(encoding)}) == 1
    assert len({encoding, Encoding(token_ids=(1, 2), type_ids=(0, 1))}) == 2
