"""What passes is what the digest names, whether the bytes were seen before or not."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nunatak_registry.blobs.blobs import KnownDigests, digest_of


@given(blobs=st.lists(st.binary(max_size=4), min_size=1), max_known=st.integers(1, 3))
def test_bytes_fit_their_own_digest_alone_in_any_order_of_checks(
    blobs: list[bytes], max_known: int
) -> None:
    known = KnownDigests(max_known=max_known)

    for data in blobs:
        for other in blobs:
            assert known.fits(data, digest_of(other)) == (data == other)


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_check_pauses_after_each_megabyte(num_bytes: int) -> None:
    data, pauses, known = os.urandom(num_bytes), list[None](), KnownDigests()

    for count in (1, 2):
        assert known.fits(data, digest_of(data), pause=lambda: pauses.append(None))
        assert len(pauses) == count * -(-num_bytes // 2**20)


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("at", [0, 2**20 - 1, 2**20, 2**20 + 8])
def test_one_changed_bit_is_found(*, at: int, seen: bool) -> None:
    data, known = os.urandom(2**20 + 9), KnownDigests()
    digest = digest_of(data)
    if seen:
        assert known.fits(data, digest)
    damaged = bytearray(data)
    damaged[at] ^= 1

    assert not known.fits(bytes(damaged), digest)
    assert known.fits(data, digest)
