import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch import Tensor

from nunatak_model import Alignment, Encoding, TrunkCache, TrunkSource

WIDTH = 4
STATE_BYTES = 4 * WIDTH
"""Bytes of one token in float32."""


def source_of(*token_ids: int) -> TrunkSource:
    return TrunkSource(
        backbone="digest",
        dtype=torch.float32,
        device=torch.device("cpu"),
        encoding=Encoding(token_ids=token_ids, type_ids=(0,) * len(token_ids)),
    )


class Spelling(str):
    """A spelling that a weak reference can follow."""

    __slots__ = ("__weakref__",)


def state_of(source: TrunkSource, value: float = 0.0) -> Tensor:
    return torch.full((len(source.encoding.token_ids), WIDTH), value)


def test_a_state_keeps_neither_its_batch_nor_a_graph_alive() -> None:
    cache, source = TrunkCache(max_bytes=1000), source_of(1)
    batch = torch.zeros(1000, WIDTH, requires_grad=True) * 2
    gone = weakref.ref(batch.untyped_storage())

    cache.offer(source, 3, batch[4:5])
    del batch

    state = cache.read(source, 3)
    assert state.untyped_storage().nbytes() == STATE_BYTES
    assert not state.requires_grad
    assert gone() is None


def test_a_cache_keeps_no_places_of_tokens() -> None:
    cache, plain = TrunkCache(max_bytes=1000), source_of(1)
    spelling = Spelling("a")
    gone = weakref.ref(spelling)
    places = Alignment(
        tokens=(spelling,), offsets=((0, 1),), text_ids=(0,), word_ids=(0,), continues_word=(False,)
    )
    aligned = replace(plain, encoding=replace(plain.encoding, alignment=places))

    cache.offer(aligned, 3, state_of(plain))
    del spelling, places, aligned

    assert set(cache.depths(plain)) == {3}
    assert gone() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": "another"},
        {"dtype": torch.bfloat16},
        {"device": torch.device("meta")},
        {"encoding": Encoding(token_ids=(1, 3), type_ids=(0, 0))},
        {"encoding": Encoding(token_ids=(1, 2), type_ids=(0, 1))},
    ],
    ids=["backbone", "dtype", "device", "token_ids", "type_ids"],
)
def test_sources_that_differ_in_anything_share_no_state(changes: dict[str, object]) -> None:
    cache, source = TrunkCache(max_bytes=1000), source_of(1, 2)

    cache.offer(source, 3, state_of(source))

    assert list(cache.depths(replace(source, **changes))) == []  # pyrefly: ignore[bad-argument-type] - one field each


def drop_oldest(states: list[tuple[int, int]]) -> int:
    """Keep at most five tokens; return the number of dropped ones."""
    num_dropped = 0
    while sum(size for size, _ in states) > 5:
        num_dropped += states.pop(0)[0]
    return num_dropped


class CacheMachine(RuleBasedStateMachine):
    """Any uses of a cache, compared with lists from the least to the most recently used."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = TrunkCache(max_bytes=5 * STATE_BYTES)
        self.held: list[tuple[int, int]] = []
        self.passing: list[tuple[int, int]] | None = None  # while it rests
        self.unread = self.accepted = self.hits = self.misses = self.saved_tokens = 0

    @rule(size=st.integers(1, 6), depth=st.integers(1, 3))
    def offer(self, size: int, depth: int) -> None:
        source = source_of(*range(size))
        self.cache.offer(source, depth, state_of(source, float(depth)))
        self.misses += 1
        if size > 5 or (size, depth) in self.held:
            return
        if self.passing is not None and (size, depth) not in self.passing:
            self.passing.append((size, depth))
            drop_oldest(self.passing)
            return
        self.passing = None
        self.held.append((size, depth))
        self.accepted += 1
        self.unread += drop_oldest(self.held)
        if self.unread >= 5:
            self.held, self.passing, self.unread = [], [], 0

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if not self.held:
            return
        used = data.draw(st.sampled_from(self.held))
        size, depth = used
        source = source_of(*range(size))
        assert torch.equal(self.cache.read(source, depth), state_of(source, float(depth)))
        self.held.remove(used)
        self.held.append(used)
        self.unread = 0
        self.hits, self.saved_tokens = self.hits + 1, self.saved_tokens + size

    @invariant()
    def holds_what_was_used_last_and_counts_its_bytes(self) -> None:
        for size in range(1, 7):
            depths = self.cache.depths(source_of(*range(size)))
            assert set(depths) == {depth for held, depth in self.held if held == size}
        stats = self.cache.stats
        assert stats.states == len(self.held)
        assert stats.bytes == sum(size for size, _ in self.held) * STATE_BYTES
        assert stats.bytes <= stats.max_bytes == 5 * STATE_BYTES
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert stats.evictions == self.accepted - len(self.held)
        assert stats.saved_tokens == self.saved_tokens


TestCacheAgainstAList = CacheMachine.TestCase
TestCacheAgainstAList.settings = settings(
    derandomize=True, deadline=None, max_examples=50, stateful_step_count=20
)
