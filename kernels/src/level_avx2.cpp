// Vectors of eight lanes with fused multiply-add.
#include "work.h"

#if defined(__x86_64__)
#include <cstring>

#pragma GCC target("avx2,fma")
#define LANES 8
#include "kernels.h"

const Kernels AVX2_KERNELS = {attend, update, normalise};
#endif
