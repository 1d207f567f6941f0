// Vectors of eight lanes, with products of integers.
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#pragma GCC target("avx2,fma,avxvnni")
#define LANES 8
#define VNNI
#include "kernels.h"

#include "integers.h"

const Kernels AVX2_VNNI_KERNELS = {attend, update, normalise, quantise, multiply_integers};
#endif
