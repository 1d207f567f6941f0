"""Garbage collection of a server: rare, for everybody waits while it runs, the engine too.

Python looks for cycles after so many more allocations of objects than deallocations, by default
700, and every three seconds under load through all of them: 0.2 s with a full queue. An answered
request leaves no cycles, so there is next to nothing to be found; what does is a failure that
holds its own traceback, or a library.
"""

import gc
from typing import Final

OBJECTS_PER_REQUEST: Final = 500
"""More than are alive while one waits: about 215 for one text and one task, and its connection."""
GENERATIONS: Final = (4, 4)
"""After so many collections of one generation, one of the next."""


def collect_rarely(*, max_requests: int) -> None:
    """Leave out what is loaded, and begin no collection because a queue of so many requests fills.

    Up to `max_requests` * `OBJECTS_PER_REQUEST` objects may wait to be found.
    """
    gc.collect()
    # Those of torch and the backbone are hundreds of thousands, and they stay anyway.
    gc.freeze()
    gc.set_threshold(max_requests * OBJECTS_PER_REQUEST, *GENERATIONS)
