"""Torch's random state, for the length of a run."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Seed torch's random state for a while: shuffling and dropout draw from it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        yield
