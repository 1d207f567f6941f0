// Vectors of sixteen lanes, with products of integers; and the same with tiles of integers.
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#pragma GCC target("avx2,fma,prefer-vector-width=512")
#define LANES 16
#define VNNI
#define TILES
#include "kernels.h"

#include "integers.h"

const Kernels AVX512_VNNI_KERNELS = {attend, update, normalise, quantise, multiply_integers};
const Kernels AMX_KERNELS = {attend, update, normalise, quantise, multiply_tiles};
#endif
