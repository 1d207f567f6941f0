"""Native CPU operators of Nunatak, as `torch.ops.nunatak_ops`.

The import loads them. `src/operators.cpp` gives their shapes, and `src/kernels.h` their loops. The
argument `level` is for tests: 0 portable, 1 AVX2, 2 AVX-512, and -1 the best of this CPU.
"""

from pathlib import Path

import torch

for library in Path(__file__).parent.glob("native*.so"):
    torch.ops.load_library(library)
