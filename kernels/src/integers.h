// Products of 8-bit integers, once for each level, after `kernels.h`. The
// includer defines VNNI and TILES where the CPU has products of bytes, and tiles of them.
//
// Sums of integers are exact in any order, so all levels and all forms of a tile give the same sums.
namespace {

typedef int16_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Number __attribute__((may_alias));
constexpr int64_t IN_LANE = 4;  // integers that a lane multiplies at once
#if defined(VNNI)
constexpr uint32_t TOO_LARGE = 128;  // what `dot` adds to each number of the weight
#else
constexpr uint32_t TOO_LARGE = 0;
#endif

inline Integers load_integers(const void* from) {
  Integers it;
  memcpy(&it, from, sizeof it);
  return it;
}

template <class T>
void quantise_as(const Quantisation& it, float* row) {
  const int64_t width = it.width;
  for (int64_t token = 0; token < it.tokens; ++token) {
    char* to = (char*)it.integers + token * width;
    copy(row, (const T*)it.x + token * it.x_stride, width, 1.0f);
    // Compared as integers, because infinity and NaN are then the largest.
    Integers most = {}, sum = {};
    for (int64_t j = 0; j < width; j += LANES) {
      const Integers size = load_integers(row + j) & 0x7FFFFFFF;
      most = size > most ? size : most;
    }
    int32_t bits = 0;
    uint32_t total = 0;
    for (int lane = 0; lane < LANES; ++lane) bits = most[lane] > bits ? most[lane] : bits;
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    // All results of a token become NaN: an infinite scale would give finite ones, as ReLU(-inf).
    if (bits >= 0x7F800000) largest = __builtin_nanf("");
    largest = largest < 127.0f * __FLT_MIN__ ? 127.0f * __FLT_MIN__ : largest;
    const float inverse = 127.0f / largest;
    // A loop of its own, or a fused multiply-add would round other numbers on some levels.
    copy(row, row, width, inverse);
    for (int64_t j = 0; j < width; j += LANES) {
      // The sum with 1.5 * 2**23 rounds to the nearest integer, ties to even, in the lowest bits.
      const Integers integers = (Integers)(load(row + j) + 12582912.0f) - 0x4B400000;
      sum += integers;
      store(row + j, (Vector)integers);
    }
    for (int64_t j = 0; j < width; ++j) to[j] = ((const Number*)row)[j];
    for (int lane = 0; lane < LANES; ++lane) total += (uint32_t)sum[lane];
    it.token_scales[token] = largest / 127.0f;
    it.offsets[token] = (int32_t)(TOO_LARGE * total);
  }
}

// Adds, in each lane, the products of the weight's integers (a, plus 128) and a token's (b).
//
// Without VNNI, two products are added in 16 bits. Two of integers with a sign are at most
// 2 * 128 * 127, so the sums are exact. AVX multiplies only an integer without a sign, here the
// weight's size, so the token's integer takes the weight's sign.
inline Integers dot(Integers sums, Integers a, Integers b) {
#if LANES == 16 && defined(VNNI)
  return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif LANES == 8 && defined(VNNI)
  return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#else
  a ^= (int32_t)0x80808080;
#if LANES == 16
  const __m512i w = (__m512i)a, x = (__m512i)b, none = _mm512_setzero_si512();
  const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), none, x);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
  return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif LANES == 8
  const __m256i w = (__m256i)a, signed_x = _mm256_sign_epi8((__m256i)b, w);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
  return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  const Words even_w = (Words)a << 8 >> 8, even_x = (Words)b << 8 >> 8;
  const Words odd_w = (Words)a >> 8, odd_x = (Words)b >> 8;
#if defined(__SSE2__)
  sums += (Integers)_mm_madd_epi16((__m128i)even_w, (__m128i)even_x);
  return sums + (Integers)_mm_madd_epi16((__m128i)odd_w, (__m128i)odd_x);
#else
  const Integers pairs = (Integers)(even_w * even_x + odd_w * odd_x);
  return sums + (pairs << 16 >> 16) + (pairs >> 16);
#endif
#endif
#endif
}

// sums[i, j] = sum over k of x[i, k] * w[k, j], for ROWS tokens and the lanes j of VECTORS vectors.
// A step of k is one lane of integers.
template <int ROWS, int VECTORS>
inline void integer_tile(const Number* x, int64_t steps, const Number* w, int32_t* sums) {
  constexpr int OF_BLOCK = BLOCK / LANES;
  Integers own[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < steps; ++k) {
    Integers columns[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      columns[v] = load_integers(w + (v / OF_BLOCK * steps + k) * BLOCK + v % OF_BLOCK * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
      const Integers own_x = Integers{} + x[i * steps + k];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) own[i][v] = dot(own[i][v], columns[v], own_x);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      memcpy(sums + i * PANEL + v * LANES, &own[i][v], sizeof own[i][v]);
}

template <int ROWS, int VECTORS>
inline void integer_tile_of(int64_t rows, const Number* x, int64_t steps, const Number* w,
                            int32_t* sums) {
  if (rows == ROWS)
    integer_tile<ROWS, VECTORS>(x, steps, w, sums);
  else if constexpr (ROWS > 1)
    integer_tile_of<ROWS - 1, VECTORS>(rows, x, steps, w, sums);
}

// Applies scales, bias and activation to the sums [rows, PANEL] of the tokens from `first` and of
// the outputs from `begin` to `end`.
template <class T>
void finish(const IntegerProduct& it, int64_t first, int64_t rows, int64_t begin, int64_t end,
            const int32_t* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t token = first + i;
    T* y = (T*)it.y + token * it.y_stride;
    for (int64_t j = begin; j < end; j += LANES) {
      const int64_t left = end - j;
      const Integers exact = load_integers(sums + i * PANEL + j - begin) - it.offsets[token];
      Vector own = __builtin_convertvector(exact, Vector);
      own *= load_upto(it.output_scales + j, left);
      own *= it.token_scales[token];
      if (it.bias) own += load_upto((const T*)it.bias + j, left);
      own = activate(own, it.activation);
      left >= LANES ? store(y + j, own) : store_first(y + j, own, left);
    }
  }
}

void finish(const IntegerProduct& it, int64_t first, int64_t rows, int64_t begin, int64_t end,
            const int32_t* sums) {
  it.is_half ? finish<Half>(it, first, rows, begin, end, sums)
             : finish<float>(it, first, rows, begin, end, sums);
}

void quantise(const Quantisation& it, float* scratch) {
  it.is_half ? quantise_as<Half>(it, scratch) : quantise_as<float>(it, scratch);
}

void multiply_integers(const IntegerProduct& it, float* scratch) {
  // The sums of a tile fill most of the registers.
  constexpr int ROWS = LANES == 4 ? 3 : LANES == 8 && TOO_LARGE == 0 ? 4 : 6;
  constexpr int WIDE = LANES == 8 ? 2 : 4, NARROW = BLOCK / LANES;
  int32_t* sums = (int32_t*)scratch;
  const int64_t steps = it.in / IN_LANE;
  for (int64_t j = 0, outs; j < it.out; j += outs) {
    const bool is_wide = it.out - j > WIDE * LANES - BLOCK;
    outs = is_wide ? WIDE * LANES : BLOCK;
    const Number* w = (const Number*)(it.weight + j * it.in);
    for (int64_t first = 0; first < it.tokens; first += ROWS) {
      const int64_t rows = it.tokens - first < ROWS ? it.tokens - first : ROWS;
      const Number* x = (const Number*)it.integers + first * steps;
      is_wide ? integer_tile_of<ROWS, WIDE>(rows, x, steps, w, sums)
              : integer_tile_of<ROWS, NARROW>(rows, x, steps, w, sums);
      finish(it, first, rows, j, it.out - j < outs ? it.out : j + outs, sums);
    }
  }
}

#if defined(TILES)
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The same for 16 * A tokens and B blocks of outputs: sums in tiles 0 to 3, x in 4, 5, w in 6, 7.
template <int A, int B>
inline void amx_tile(const int8_t* x, int64_t in, const uint8_t* w, int32_t* sums) {
  _tile_zero(0);
  if (B > 1) _tile_zero(1);
  if (A > 1) _tile_zero(2);
  if (A > 1 && B > 1) _tile_zero(3);
  for (int64_t k = 0; k < in; k += 64) {
    _tile_loadd(4, x + k, in);
    _tile_loadd(6, w + k * BLOCK, 64);
    _tile_dpbsud(0, 4, 6);
    if (B > 1) {
      _tile_loadd(7, w + (in + k) * BLOCK, 64);
      _tile_dpbsud(1, 4, 7);
    }
    if (A > 1) {
      _tile_loadd(5, x + 16 * in + k, in);
      _tile_dpbsud(2, 5, 6);
    }
    if (A > 1 && B > 1) _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, sums, 4 * PANEL);
  if (B > 1) _tile_stored(1, sums + BLOCK, 4 * PANEL);
  if (A > 1) _tile_stored(2, sums + 16 * PANEL, 4 * PANEL);
  if (A > 1 && B > 1) _tile_stored(3, sums + 16 * PANEL + BLOCK, 4 * PANEL);
}

// Reads up to 16 tokens after the last one, whose sums nobody reads.
void multiply_tiles(const IntegerProduct& it, float* scratch) {
  if (it.in % 64) return multiply_integers(it, scratch);
  static constexpr TileConfig config;
  int32_t* sums = (int32_t*)scratch;
  _tile_loadconfig(&config);
  for (int64_t first = 0; first < it.tokens; first += MAX_ROWS) {
    const int64_t left = it.tokens - first, rows = left < MAX_ROWS ? left : MAX_ROWS;
    const int8_t* x = (const int8_t*)it.integers + first * it.in;
    for (int64_t j = 0; j < it.out; j += 2 * BLOCK) {
      const uint8_t* w = it.weight + j * it.in;
      const bool is_one = it.out - j <= BLOCK;
      if (rows > 16)
        is_one ? amx_tile<2, 1>(x, it.in, w, sums + j) : amx_tile<2, 2>(x, it.in, w, sums + j);
      else
        is_one ? amx_tile<1, 1>(x, it.in, w, sums + j) : amx_tile<1, 2>(x, it.in, w, sums + j);
    }
    finish(it, first, rows, 0, it.out, sums);
  }
  _tile_release();
}
#endif

}  // namespace
