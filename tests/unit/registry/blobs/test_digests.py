"""Only the bytes that a digest names pass, and a long check can be interrupted."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nunatak_registry.blobs.blobs import digest_of, fits


@given(data=st.binary(max_size=4), other=st.binary(max_size=4))
def test_bytes_fit_their_own_digest_alone(data: bytes, other: bytes) -> None:
    assert fits(data, digest_of(data))
    assert fits(data, digest_of(other)) == (data == other)


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_check_pauses_after_each_megabyte(num_bytes: int) -> None:
    data, pauses = os.urandom(num_bytes), list[None]()

    assert fits(data, digest_of(data), pause=lambda: pauses.append(None))

    assert len(pauses) == -(-num_bytes // 2**20)


@pytest.mark.parametrize("at", [0, 2**20 - 1, 2**20, 2**20 + 8])
def test_one_changed_bit_is_found(at: int) -> None:
    data = os.urandom(2**20 + 9)
    damaged = bytearray(data)
    damaged[at] ^= 1

    assert fits(data, digest_of(data))
    assert not fits(bytes(damaged), digest_of(data))
