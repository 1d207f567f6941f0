// Vectors of four lanes, which every CPU of the platform has.
#include "work.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>

#define LANES 4
#include "kernels.h"

#include "integers.h"

const Kernels PORTABLE_KERNELS = {attend, update, normalise, quantise, multiply_integers};
