// Vectors of four lanes, which every CPU of the platform has.
#include "work.h"

#include <cstring>

#define LANES 4
#include "kernels.h"

const Kernels PORTABLE_KERNELS = {attend, update, normalise};
