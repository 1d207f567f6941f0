"""Garbage collection of a server: rare, for everybody waits while it runs, the engine too.

Python looks for cycles after so many more allocations of objects than deallocations: by default
700, and through all objects every few seconds under load, which takes 0.2 s with a full queue. An
answered request leaves no cycles. What does is a failure that holds its own traceback, or a
library.
"""

import gc
from typing import Final

OBJECTS_PER_REQUEST: Final = 500
"""More than are alive while one waits: about 215 for one text and one task, and its connection."""
MIN_OBJECTS, MAX_OBJECTS = 100_000, 5_000_000
"""A short queue is no reason to look often, a long one none to let cycles fill the memory."""
GENERATIONS: Final = (4, 4)
"""After so many collections of one generation, one of the next."""


def collect_rarely(*, max_requests: int) -> None:
    """Leave out what is loaded, and begin no collection because a queue of so many requests fills.

    `MIN_OBJECTS` to `MAX_OBJECTS` objects in cycles may wait to be found.
    """
    gc.collect()
    # Those of torch and the backbone are hundreds of thousands, and they stay anyway.
    gc.freeze()
    num_objects = min(MAX_OBJECTS, max(MIN_OBJECTS, max_requests * OBJECTS_PER_REQUEST))
    gc.set_threshold(num_objects, *GENERATIONS)
