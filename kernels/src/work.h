// What an operator asks of a kernel, without torch: pointers, strides and ranges.
//
// All numbers are stored as float32 or bfloat16 (`is_half`), and summed in float32. Strides count
// elements. Axes: tokens = packed tokens, in, out = widths of a map, rank = inner width of two maps.
#pragma once

#include <cstdint>

// Some heads and queries of one row. Query i of the row sees the keys from i - left to i + right.
struct Attention {
  const void *query, *key, *value;  // of the row's first token, [heads or shared heads, head_width]
  int64_t query_stride, key_stride, value_stride;
  void* context;  // of the row's first token, [heads, head_width]
  int64_t context_stride;
  int64_t length, head_width;
  int64_t group;                    // heads of queries for each head of keys and values
  int64_t first_head, last_head;    // half-open ranges
  int64_t first_query, last_query;
  int64_t left, right;
  float scale;
  bool is_half;
};

// y[tokens, out] += scale * up(activation(down(x))), where x, y are some tokens of one task.
struct Update {
  const void *x, *down, *up;        // [tokens, in], [in, rank], [rank, out]
  const void *down_bias, *up_bias;  // [rank], [out]; null in low-rank updates
  void* y;
  int64_t x_stride, y_stride;
  int64_t tokens, in, rank, out;
  float scale;
  int activation;
  bool is_half;
};

// y[token] = (x[token] - mean) / sqrt(variance + epsilon) * gain + offset, for some tokens.
struct LayerNorm {
  const void *x, *gain, *offset;
  void* y;
  int64_t tokens, width;
  float epsilon;
  bool is_half;
};

// Integers [tokens, width] for some tokens: the largest number of a token becomes 127.
struct Quantisation {
  const void* x;
  void* integers;       // bytes with a sign
  float* token_scales;  // [tokens], the value of one step
  int32_t* offsets;     // [tokens], how much too large the sums of the level's products are
  int64_t x_stride, tokens, width;
  bool is_half;
};

// y[token, out] = activation(output_scales[out] * token_scales[token] * (integers @ weight.T) + bias),
// for some tokens and some outputs. The weight lies in blocks [in / 4, BLOCK, 4], each number plus 128.
struct IntegerProduct {
  const void* integers;  // [tokens, in], bytes with a sign
  const float* token_scales;
  const int32_t* offsets;
  const uint8_t* weight;
  const float* output_scales;  // [out]
  const void* bias;            // [out], or null
  void* y;
  int64_t y_stride, tokens, in, out;
  int activation;
  bool is_half;
};

enum Activation { IDENTITY, GELU, GELU_TANH, RELU, TANH, SILU, LEAKY_RELU };

constexpr int64_t MAX_TOKENS = 24;  // of an `Update`: pieces of all cores, and rows of two tiles
constexpr int64_t MAX_LANES = 16;   // of a vector, at any level
constexpr int64_t MAX_QUERIES = 48;  // that share their scores in memory
constexpr int64_t BLOCK = 16;         // outputs that lie together in a weight of integers
constexpr int64_t PANEL = 4 * BLOCK;  // outputs of an `IntegerProduct`
constexpr int64_t MAX_ROWS = 32;      // tokens whose sums of integers are in memory at once

inline int64_t padded(int64_t width) { return (width + MAX_LANES - 1) / MAX_LANES * MAX_LANES; }

// Floats of memory that a kernel overwrites while it works.
inline int64_t scratch_of(const Attention& it) {
  const int64_t keys = padded(it.length), width = padded(it.head_width);
  return keys * (2 * width + MAX_QUERIES) + MAX_QUERIES * 2 * width;
}
inline int64_t scratch_of(const Update& it) {
  return MAX_TOKENS * (padded(it.in) + padded(it.rank) + padded(it.out));
}
inline int64_t scratch_of(const LayerNorm& it) { return padded(it.width); }
inline int64_t scratch_of(const Quantisation& it) { return padded(it.width); }
inline int64_t scratch_of(const IntegerProduct&) { return MAX_ROWS * PANEL; }

// The kernels of one level: the same code, compiled for other vectors.
struct Kernels {
  void (*attend)(const Attention&, float* scratch);
  void (*update)(const Update&, float* scratch);
  void (*normalise)(const LayerNorm&, float* scratch);
  void (*quantise)(const Quantisation&, float* scratch);
  void (*multiply_integers)(const IntegerProduct&, float* scratch);
};

extern const Kernels PORTABLE_KERNELS;
#if defined(__x86_64__)
extern const Kernels AVX2_KERNELS, AVX2_VNNI_KERNELS;
extern const Kernels AVX512_KERNELS, AVX512_VNNI_KERNELS, AMX_KERNELS;
#endif
