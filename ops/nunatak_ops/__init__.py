"""Native CPU operators of Nunatak, as `torch.ops.nunatak_ops`.

The import loads them. `src/operators.cpp` gives their shapes, and `src/kernels.h` and
`src/integers.h` their loops. The argument `level` is for tests: 0 portable, 1 AVX2, 2 AVX2 with
AVX-VNNI, 3 AVX-512, 4 AVX-512 with VNNI, 5 the same with AMX, and -1 the best of this CPU.
"""

from pathlib import Path

import torch

for library in Path(__file__).parent.glob("native*.so"):
    torch.ops.load_library(library)
