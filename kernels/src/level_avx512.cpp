// Vectors of sixteen lanes with fused multiply-add.
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define LANES 16
#include "kernels.h"

#include "integers.h"

const Kernels AVX512_KERNELS = {attend, update, normalise, quantise, multiply_integers};
#endif
