// Vectors of eight lanes with fused multiply-add.
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#pragma GCC target("avx2,fma")
#define LANES 8
#include "kernels.h"

#include "integers.h"

const Kernels AVX2_KERNELS = {attend, update, normalise, quantise, multiply_integers};
#endif
