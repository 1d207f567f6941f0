// The kernels, once for each level. The includer sets LANES and the target of the compiler.
//
// Every sum runs in the order of its terms, in one lane. So a token's result depends neither on the
// tokens next to it nor on the number of threads. The namespace is unnamed and no template of the
// standard library stands here, because the linker would keep one level's copy for all levels.
namespace {

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

struct Half {  // bfloat16: the upper half of a float32
  uint16_t bits;
};

inline Vector load(const float* from) {
  Vector it;
  memcpy(&it, from, sizeof it);
  return it;
}

inline Vector load(const Half* from) {
  Halves it;
  memcpy(&it, from, sizeof it);
  return (Vector)(__builtin_convertvector(it, Bits) << 16);
}

inline void store(float* to, Vector it) { memcpy(to, &it, sizeof it); }

inline void store(Half* to, Vector it) {  // rounds to the nearest, ties to even; NaN stays NaN
  const Bits bits = (Bits)it;
  const Bits rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  const Bits nan = (Bits)(it != it);
  const Halves halves = __builtin_convertvector((rounded & ~nan) | (0x7FC0u & nan), Halves);
  memcpy(to, &halves, sizeof halves);
}

template <class T>
inline Vector load_first(const T* from, int64_t count) {  // zeros in the other lanes
  T whole[LANES] = {};
  for (int64_t lane = 0; lane < count; ++lane) whole[lane] = from[lane];
  return load(whole);
}

template <class T>
inline Vector load_upto(const T* from, int64_t count) {
  return count >= LANES ? load(from) : load_first(from, count);
}

template <class T>
inline void store_first(T* to, Vector it, int64_t count) {
  T whole[LANES];
  store(whole, it);
  for (int64_t lane = 0; lane < count; ++lane) to[lane] = whole[lane];
}

// Lane l of the result is lane l ^ HALF of a.
template <int HALF>
inline Vector exchange(Vector a) {
  Integers mask;
  for (int lane = 0; lane < LANES; ++lane) mask[lane] = lane ^ HALF;
  return __builtin_shuffle(a, mask);
}

template <int HALF = LANES / 2>
inline float sum_of(Vector it) {
  it += exchange<HALF>(it);
  if constexpr (HALF > 1) return sum_of<HALF / 2>(it);
  return it[0];
}

template <int HALF = LANES / 2>
inline float largest_of(Vector it) {
  const Vector other = exchange<HALF>(it);
  it = other > it ? other : it;
  if constexpr (HALF > 1) return largest_of<HALF / 2>(it);
  return it[0];
}

// Exchanges rows and columns of a square, by blocks of HALF, 2 HALF, 4 HALF, ...
template <int HALF = 1>
inline void transpose(Vector (&rows)[LANES]) {
  Integers low, high;
  for (int lane = 0; lane < LANES; ++lane) {
    low[lane] = lane & HALF ? LANES + lane - HALF : lane;
    high[lane] = lane & HALF ? LANES + lane : lane + HALF;
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) {
    if (i & HALF) continue;
    const Vector above = rows[i], below = rows[i + HALF];
    rows[i] = __builtin_shuffle(above, below, low);
    rows[i + HALF] = __builtin_shuffle(above, below, high);
  }
  if constexpr (2 * HALF < LANES) transpose<2 * HALF>(rows);
}

// width, rounded up to whole vectors
inline int64_t whole(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

// to[0:whole(width)] = from[0:width] * scale, then zeros. What follows in memory is read next.
template <class T>
inline void copy(float* to, const T* from, int64_t width, float scale) {
  int64_t at = 0;
  for (; at + LANES <= width; at += LANES) {
    __builtin_prefetch(from + at + width);
    store(to + at, load(from + at) * scale);
  }
  if (at < width) store(to + at, load_first(from + at, width - at) * scale);
}

// e**x, to within 2e-7 of the result (Cephes' polynomial); 0 below the normal numbers.
inline Vector exponential(Vector x) {
  const Vector none = {}, bounded = x > 88.3f ? none + 88.3f : x;
  const Vector shifted = bounded * 1.44269504f + 12582912.0f;  // rounds to an integer
  const Vector power = shifted - 12582912.0f;
  const Vector r = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
  Vector sum = r * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * r + 8.3334519073e-3f;
  sum = sum * r + 4.1665795894e-2f;
  sum = sum * r + 1.6666665459e-1f;
  sum = sum * r + 5.0000001201e-1f;
  sum = sum * r * r + r + 1.0f;
  const Vector result = sum * (Vector)(((Bits)shifted << 23) + 0x3F800000u);
  return x < -87.0f ? none : result;
}

inline Vector hyperbolic_tangent(Vector x) {
  const Vector size = x < 0.0f ? -x : x, square = x * x;
  Vector small = square * -5.70498872745e-3f + 2.06390887954e-2f;  // Cephes' polynomial near 0
  small = small * square - 5.37397155531e-2f;
  small = small * square + 1.33314422036e-1f;
  small = small * square - 3.33332819422e-1f;
  small = small * square * x + x;
  const Vector large = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
  return size < 0.625f ? small : (x < 0.0f ? -large : large);
}

// A quotient of polynomials, fitted to within 3e-8 of the result on [-4, 4]; beyond, 1 or -1.
inline Vector error_function(Vector x) {
  const Vector none = {}, square = x * x;
  Vector above = square * 1.986759252e-6f + 2.845659930e-4f;
  above = above * square + 3.883396389e-3f;
  above = above * square + 5.310190933e-2f;
  above = above * square + 1.935464546e-1f;
  above = above * square + 1.128379139f;
  Vector below = square * 3.741993568e-5f + 1.185581668e-3f;
  below = below * square + 1.520735884e-2f;
  below = below * square + 1.153505568e-1f;
  below = below * square + 5.048586348e-1f;
  below = below * square + 1.0f;
  const Vector result = x * above / below;
  return x > 4.0f ? none + 1.0f : (x < -4.0f ? none - 1.0f : result);
}

inline Vector activate(Vector x, int activation) {
  const Vector none = {};
  switch (activation) {
    case GELU:
      return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
    case GELU_TANH:
      return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    case RELU:
      return x < 0.0f ? none : x;
    case TANH:
      return hyperbolic_tangent(x);
    case SILU:
      return x / (1.0f + exponential(-x));
    case LEAKY_RELU:
      return x < 0.0f ? x * 0.01f : x;
    default:
      return x;
  }
}

// c[i, j] = sum over k of a[i, k] * b[k, j], for i < ROWS and the lanes j of VECTORS vectors.
//
// Lanes past `width` read the next row of b, and nobody reads their sums. Only the last rows of b
// (`safe` and after) have no next row, so their lanes past `width` are not read.
template <int ROWS, int VECTORS, class T>
inline void tile(const float* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t depth,
                 int64_t width, float* c, int64_t c_stride) {
  Vector sums[ROWS][VECTORS] = {};
  const int64_t over = VECTORS * LANES - width;
  const int64_t unsafe = over > 0 ? (over + b_stride - 1) / b_stride : 0;
  const int64_t safe = depth > unsafe ? depth - unsafe : 0;
  for (int64_t k = 0; k < depth; ++k) {
    Vector columns[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      const T* from = b + k * b_stride + v * LANES;
      columns[v] = k < safe ? load(from) : load_upto(from, width - v * LANES);
    }
    for (int i = 0; i < ROWS; ++i) {
      const float own = a[i * a_stride + k];
      for (int v = 0; v < VECTORS; ++v) sums[i][v] += own * columns[v];
    }
  }
  // Unrolled, or the sums would pass through memory.
#pragma GCC unroll 12
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) store(c + i * c_stride + v * LANES, sums[i][v]);
}

template <int ROWS, int VECTORS, class T>
inline void tile_of(int64_t rows, const float* a, int64_t a_stride, const T* b, int64_t b_stride,
                    int64_t depth, int64_t width, float* c, int64_t c_stride) {
  if (rows == ROWS)
    tile<ROWS, VECTORS>(a, a_stride, b, b_stride, depth, width, c, c_stride);
  else if constexpr (ROWS > 1)
    tile_of<ROWS - 1, VECTORS>(rows, a, a_stride, b, b_stride, depth, width, c, c_stride);
}

// c[i, j] = sum over k of a[i, k] * b[k, j], for i < rows, j < width; c has padded rows.
template <class T>
void multiply(const float* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows,
              int64_t depth, int64_t width, float* c, int64_t c_stride) {
  constexpr int WIDE = 6, NARROW = 12;  // rows of a tile of two vectors, and of one
  for (int64_t j = 0; j < width;) {
    const bool is_wide = width - j > LANES;
    const int64_t step = is_wide ? WIDE : NARROW;
    for (int64_t i = 0; i < rows; i += step) {
      const int64_t left = rows - i < step ? rows - i : step;
      const float* own = a + i * a_stride;
      float* sums = c + i * c_stride + j;
      if (is_wide)
        tile_of<WIDE, 2>(left, own, a_stride, b + j, b_stride, depth, width - j, sums, c_stride);
      else
        tile_of<NARROW, 1>(left, own, a_stride, b + j, b_stride, depth, width - j, sums, c_stride);
    }
    j += is_wide ? 2 * LANES : LANES;
  }
}

// scores[0:keys] = exp(scores - max), zeros outside [first, last); returns the sum.
inline float soften(float* scores, int64_t keys, int64_t first, int64_t last) {
  for (int64_t j = 0; j < first; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = last; j < keys; ++j) scores[j] = -__builtin_inff();
  Vector most = load(scores);
  for (int64_t j = LANES; j < keys; j += LANES) {
    const Vector own = load(scores + j);
    most = own > most ? own : most;
  }
  const float largest = largest_of(most);
  Vector sum = {};
  for (int64_t j = 0; j < keys; j += LANES) {
    const Vector own = exponential(load(scores + j) - largest);
    store(scores + j, own);
    sum += own;
  }
  return sum_of(sum);
}

// context[i] = sum over j of softmax(scale * query[i] . key[j]) * value[j], over the keys j that
// query i sees. The keys lie transposed in the scratch, so that a vector holds several keys.
template <class T>
void attend_head(const Attention& it, int64_t head, float* scratch) {
  const int64_t width = it.head_width, wide = whole(width), shared = head / it.group * width;
  const T *query = (const T*)it.query + head * width, *key = (const T*)it.key + shared;
  const T* value = (const T*)it.value + shared;
  T* context = (T*)it.context + head * width;
  const int64_t begin = it.first_query > it.left ? it.first_query - it.left : 0;
  const int64_t end = it.last_query + it.right < it.length ? it.last_query + it.right : it.length;
  const int64_t num_keys = end - begin, keys = whole(num_keys);
  float *columns = scratch, *values = columns + wide * keys;  // [wide, keys], [keys, wide]
  float *queries = values + keys * wide, *scores = queries + MAX_QUERIES * wide;
  float* sums = scores + MAX_QUERIES * keys;
  for (int64_t j = 0; j < keys; j += LANES)
    for (int64_t k = 0; k < wide; k += LANES) {
      Vector square[LANES] = {};
      for (int i = 0; i < LANES && j + i < num_keys; ++i) {
        const T* from = key + (begin + j + i) * it.key_stride + k;
        __builtin_prefetch(from + width);  // of the next head
        square[i] = load_upto(from, width - k);
      }
      transpose(square);
      for (int i = 0; i < LANES; ++i) store(columns + (k + i) * keys + j, square[i]);
    }
  for (int64_t j = 0; j < num_keys; ++j)
    copy(values + j * wide, value + (begin + j) * it.value_stride, width, 1.0f);
  for (int64_t first = it.first_query; first < it.last_query; first += MAX_QUERIES) {
    const int64_t left = it.last_query - first;
    const int64_t count = left < MAX_QUERIES ? left : MAX_QUERIES;
    for (int64_t i = 0; i < count; ++i)
      copy(queries + i * wide, query + (first + i) * it.query_stride, width, it.scale);
    multiply(queries, wide, columns, keys, count, width, num_keys, scores, keys);
    float shares[MAX_QUERIES];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t near = first + i - it.left - begin, far = first + i + it.right + 1 - begin;
      shares[i] = 1.0f / soften(scores + i * keys, keys, near > 0 ? near : 0, far < num_keys ? far : num_keys);
    }
    multiply(scores, keys, values, wide, count, num_keys, width, sums, wide);
    for (int64_t i = 0; i < count; ++i) {
      T* to = context + (first + i) * it.context_stride;
      int64_t k = 0;
      for (; k + LANES <= width; k += LANES) store(to + k, load(sums + i * wide + k) * shares[i]);
      if (k < width) store_first(to + k, load(sums + i * wide + k) * shares[i], width - k);
    }
  }
}

template <class T>
inline void add(T* y, const float* sums, const T* bias, float scale, int64_t width) {
  for (int64_t j = 0; j < width; j += LANES) {
    const int64_t left = width - j;
    Vector own = load(sums + j) * scale;
    if (left >= LANES) {
      if (bias) own += load(bias + j);
      store(y + j, load(y + j) + own);
    } else {
      if (bias) own += load_first(bias + j, left);
      store_first(y + j, load_first(y + j, left) + own, left);
    }
  }
}

inline const float* as_floats(const float* x, int64_t& stride, int64_t, int64_t, float*) {
  (void)stride;
  return x;
}

inline const float* as_floats(const Half* x, int64_t& stride, int64_t tokens, int64_t width,
                              float* scratch) {
  const int64_t wide = whole(width);
  for (int64_t i = 0; i < tokens; ++i) copy(scratch + i * wide, x + i * stride, width, 1.0f);
  stride = wide;
  return scratch;
}

template <class T>
void update_as(const Update& it, float* scratch) {
  const int64_t narrow = whole(it.rank), wide = whole(it.out);
  float *inner = scratch + MAX_TOKENS * whole(it.in), *sums = inner + MAX_TOKENS * narrow;
  int64_t stride = it.x_stride;
  const float* x = as_floats((const T*)it.x, stride, it.tokens, it.in, scratch);
  multiply(x, stride, (const T*)it.down, it.rank, it.tokens, it.in, it.rank, inner, narrow);
  const T* bias = (const T*)it.down_bias;
  for (int64_t i = 0; i < it.tokens && (bias || it.activation != IDENTITY); ++i)
    for (int64_t j = 0; j < it.rank; j += LANES) {
      float* own = inner + i * narrow + j;
      if (bias) store(own, load(own) + load_upto(bias + j, it.rank - j));
      store(own, activate(load(own), it.activation));
    }
  multiply(inner, narrow, (const T*)it.up, it.out, it.tokens, it.rank, it.out, sums, wide);
  for (int64_t i = 0; i < it.tokens; ++i)
    add((T*)it.y + i * it.y_stride, sums + i * wide, (const T*)it.up_bias, it.scale, it.out);
}

template <class T>
void normalise_as(const LayerNorm& it, float* row) {
  const T *gain = (const T*)it.gain, *offset = (const T*)it.offset;
  const int64_t width = it.width, full = width / LANES * LANES;
  for (int64_t token = 0; token < it.tokens; ++token) {
    T* to = (T*)it.y + token * width;
    copy(row, (const T*)it.x + token * width, width, 1.0f);
    Vector sum = {}, squares = {};
    for (int64_t j = 0; j < width; j += LANES) sum += load(row + j);
    const float mean = sum_of(sum) / width;
    for (int64_t j = 0; j < full; j += LANES) {
      const Vector centred = load(row + j) - mean;
      squares += centred * centred;
    }
    float variance = sum_of(squares);
    for (int64_t j = full; j < width; ++j) variance += (row[j] - mean) * (row[j] - mean);
    const float scale = 1.0f / __builtin_sqrtf(variance / width + it.epsilon);
    for (int64_t j = 0; j < full; j += LANES)
      store(to + j, (load(row + j) - mean) * scale * load(gain + j) + load(offset + j));
    if (full < width) {
      const int64_t left = width - full;
      const Vector centred = (load(row + full) - mean) * scale;
      const Vector own = centred * load_first(gain + full, left) + load_first(offset + full, left);
      store_first(to + full, own, left);
    }
  }
}

void attend(const Attention& it, float* scratch) {
  for (int64_t head = it.first_head; head < it.last_head; ++head)
    it.is_half ? attend_head<Half>(it, head, scratch) : attend_head<float>(it, head, scratch);
}

void update(const Update& it, float* scratch) {
  it.is_half ? update_as<Half>(it, scratch) : update_as<float>(it, scratch);
}

void normalise(const LayerNorm& it, float* scratch) {
  it.is_half ? normalise_as<Half>(it, scratch) : normalise_as<float>(it, scratch);
}

}  // namespace
