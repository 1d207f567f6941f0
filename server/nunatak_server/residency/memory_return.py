"""Memory return: what loads and evicted versions have freed goes back to the operating system.

The allocator of glibc keeps freed memory for itself: after a while of loads and evictions about as
much as the versions took, and after loads alone what they held for a moment. It gives it back when
asked, in some 20 ms, so it is asked off the event loop, and not for every one. Other allocators are
left alone.
"""

import ctypes
import sys
from collections.abc import Callable

INTERVAL_S = 5.0
"""At least this long between two returns: they cost well below a percent of a core."""


def find_memory_return() -> Callable[[], None] | None:
    """Return what gives freed memory back, blocking for milliseconds; None if nothing can."""
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None

    def give_back() -> None:
        trim(0)

    return give_back
