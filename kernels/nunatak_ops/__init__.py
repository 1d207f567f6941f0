"""Native CPU operators of Nunatak, as `torch.ops.nunatak_ops`.

The import loads them. `src/operators.cpp` gives their shapes, `kernels.h` and `integers.h` their
loops. The argument `level` is for tests: one of `levels()`, as in `enum Level`, or -1: the best.
"""

from pathlib import Path

import torch

for library in Path(__file__).parent.glob("native*.so"):
    torch.ops.load_library(library)
