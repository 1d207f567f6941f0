// The operators as torch sees them: checks, the choice of a level, and the loop over all cores.
//
// They are built on torch's stable interface, so that one build serves later versions of torch.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "work.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;
using Integers = std::vector<int64_t>;

namespace {

constexpr int64_t PANEL_TOKENS = 128;             // that share a panel of a weight of integers
constexpr int64_t KEY_QUERIES = 4 * MAX_QUERIES;  // queries that share a copy of their keys

enum Level : int64_t { PORTABLE, AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, AMX };

#if defined(__x86_64__)
// Whether the CPU has tiles of integers, and the system lets this process use them.
bool has_tiles() {
#if defined(__linux__)
  constexpr int REQUEST_PERMISSION = 0x1023, TILES = 18;  // arch_prctl(2)
  return __builtin_cpu_supports("amx-int8") && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILES);
#else
  return false;
#endif
}
#endif

// The levels that this CPU has; the last one is the best.
Integers levels() {
  Integers found{PORTABLE};
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found;
  found.push_back(AVX2);
  if (__builtin_cpu_supports("avxvnni")) found.push_back(AVX2_VNNI);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return found;
  found.push_back(AVX512);
  if (!__builtin_cpu_supports("avx512vnni")) return found;
  found.push_back(AVX512_VNNI);
  if (has_tiles()) found.push_back(AMX);
#endif
  return found;
}

const Kernels& kernels_of(int64_t level) {
  static const Integers known = levels();
  const int64_t wanted = level < 0 ? known.back() : level;
  STD_TORCH_CHECK(std::find(known.begin(), known.end(), wanted) != known.end(),
                  "this CPU has no level ", level);
#if defined(__x86_64__)
  static const Kernels* const kernels[] = {&PORTABLE_KERNELS, &AVX2_KERNELS,        &AVX2_VNNI_KERNELS,
                                           &AVX512_KERNELS,   &AVX512_VNNI_KERNELS, &AMX_KERNELS};
  return *kernels[wanted];
#endif
  return PORTABLE_KERNELS;
}

// Runs kernel(item, scratch) for all items on all cores. A core takes the next item when it is
// free, because items differ in size. Which core runs an item changes no result.
template <class Item>
void run_all(const std::vector<Item>& items, void (*kernel)(const Item&, float*)) {
  int64_t size = 0;
  for (const Item& item : items) size = std::max(size, scratch_of(item));
  std::atomic<int64_t> next{0};
  const int64_t count = items.size();
  const int64_t threads = std::min<int64_t>(count, torch::stable::get_num_threads());
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const auto scratch = std::make_unique_for_overwrite<float[]>(size);
    for (int64_t at = next++; at < count; at = next++) kernel(items[at], scratch.get());
  });
}

bool is_half(const Tensor& it) { return it.scalar_type() == ScalarType::BFloat16; }

const char* at(const Tensor& it, int64_t element) {
  return (const char*)it.const_data_ptr() + element * it.element_size();
}

// A tensor of `like`'s number format on the CPU, whose last axis lies in one piece.
void check(const char* name, const Tensor& it, int64_t axes, const Tensor& like) {
  const bool is_known = like.scalar_type() == ScalarType::Float || is_half(like);
  STD_TORCH_CHECK(it.is_cpu() && is_known && it.scalar_type() == like.scalar_type(), name,
                  " must be float32 or bfloat16 on the CPU, in the number format of the tokens");
  STD_TORCH_CHECK(it.dim() == axes, name, " must have ", axes, " axes, got ", it.dim());
  STD_TORCH_CHECK(it.size(axes - 1) <= 1 || it.stride(axes - 1) == 1, name,
                  " must be contiguous along its last axis");
}

// The same, in one piece and of this shape.
void check_shape(const char* name, const Tensor& it, const Integers& shape, const Tensor& like) {
  check(name, it, shape.size(), like);
  bool is_right = it.is_contiguous();
  for (size_t axis = 0; axis < shape.size(); ++axis) is_right &= it.size(axis) == shape[axis];
  STD_TORCH_CHECK(is_right, name, " has the wrong shape or is not contiguous");
}

// A factor [out, in] that lies by columns, as the kernels read it: in the memory of [in, out].
void check_factor(const char* name, const Tensor& it, int64_t out, int64_t in, const Tensor& like) {
  const bool is_alike = it.is_cpu() && it.scalar_type() == like.scalar_type() && it.dim() == 2;
  STD_TORCH_CHECK(is_alike && it.size(0) == out && it.size(1) == in, name,
                  " must be [", out, ", ", in, "] in the number format of the tokens");
  STD_TORCH_CHECK((out == 1 || it.stride(0) == 1) && (in == 1 || it.stride(1) == out), name,
                  " must lie by columns");
}

// A tensor as in `check`, with `heads` heads that are neighbours in memory.
void check_heads(const char* name, const Tensor& it, int64_t heads, const Tensor& like) {
  check(name, it, 3, like);
  const bool is_alike = it.size(0) == like.size(0) && it.size(2) == like.size(2);
  STD_TORCH_CHECK(is_alike && it.size(1) == heads && (heads == 1 || it.stride(1) == it.size(2)),
                  name, " has the wrong shape, or heads that are no neighbours");
}

void check_range(int64_t begin, int64_t end, int64_t size) {
  STD_TORCH_CHECK(0 <= begin && begin <= end && end <= size, "expected a range within ", size,
                  ", got ", begin, " to ", end);
}

// One end for each part, the last one after all tokens.
void check_ends(const Integers& ends, size_t parts, int64_t tokens) {
  STD_TORCH_CHECK(ends.size() == parts && (parts ? ends.back() : 0) == tokens, "expected ", parts,
                  " ends, the last at ", tokens);
}

// For each head of each row: context = softmax(scale * query @ key.T) @ value, where query i sees the
// keys from i - left to i + right, and -1 means all keys on that side.
// query [tokens, heads, width], key, value [tokens, shared heads, width], bounds [rows + 1] int32.
Tensor attention(Tensor query, Tensor key, Tensor value, Tensor bounds, int64_t left, int64_t right,
                 double scale, int64_t level) {
  check_heads("query", query, query.size(1), query);
  check_heads("key", key, key.size(1), query);
  check_heads("value", value, key.size(1), query);
  const int64_t tokens = query.size(0), heads = query.size(1), width = query.size(2);
  const int64_t shared = key.size(1), rows = bounds.numel() - 1;
  STD_TORCH_CHECK(shared > 0 && heads % shared == 0, "expected a multiple of ", shared, " heads");
  STD_TORCH_CHECK(bounds.is_cpu() && bounds.scalar_type() == ScalarType::Int &&
                      bounds.is_contiguous() && rows >= 0,
                  "bounds must be int32 on the CPU");
  const int32_t* bound = (const int32_t*)bounds.const_data_ptr();
  STD_TORCH_CHECK(bound[0] == 0 && bound[rows] == tokens, "bounds must go from 0 to ", tokens);
  Tensor context = torch::stable::new_empty(query, {tokens, heads, width});
  // Heads of one token are neighbours in memory. So an item has all heads, if there are many rows.
  const bool has_many = rows >= 4 * (int64_t)torch::stable::get_num_threads();
  const int64_t num_heads = has_many ? heads : 1;
  std::vector<Attention> items;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = bound[row], length = bound[row + 1] - begin;
    check_range(begin, bound[row + 1], tokens);
    Attention all{};
    all.query = at(query, begin * query.stride(0));
    all.key = at(key, begin * key.stride(0));
    all.value = at(value, begin * value.stride(0));
    all.query_stride = query.stride(0);
    all.key_stride = key.stride(0);
    all.value_stride = value.stride(0);
    all.context = (void*)at(context, begin * heads * width);
    all.context_stride = heads * width;
    all.length = length;
    all.head_width = width;
    all.group = heads / shared;
    all.left = left < 0 ? length : left;
    all.right = right < 0 ? length : right;
    all.scale = scale;
    all.is_half = is_half(query);
    for (int64_t head = 0; head < heads; head += num_heads)
      for (int64_t first = 0; first < length; first += KEY_QUERIES) {
        all.first_head = head;
        all.last_head = head + num_heads;
        all.first_query = first;
        all.last_query = std::min(first + KEY_QUERIES, length);
        items.push_back(all);
      }
  }
  // The longest first, so that no core begins a long row while the others have ended.
  std::stable_sort(items.begin(), items.end(),
                   [](const Attention& a, const Attention& b) { return a.length > b.length; });
  run_all(items, kernels_of(level).attend);
  return context;
}

// Adds an item for each piece of the tokens [begin, end).
void add_pieces(std::vector<Update>& items, Update all, const Tensor& y, const Tensor& x,
                int64_t begin, int64_t end, int64_t column) {
  check_range(begin, end, std::min(x.size(0), y.size(0)));
  check_range(column, column + all.out, y.size(1));
  all.in = x.size(1);
  all.x_stride = x.stride(0);
  all.y_stride = y.stride(0);
  all.is_half = is_half(x);
  for (int64_t token = begin; token < end; token += MAX_TOKENS) {
    all.tokens = std::min(MAX_TOKENS, end - token);
    all.x = at(x, token * x.stride(0));
    all.y = (void*)at(y, token * y.stride(0) + column);
    items.push_back(all);
  }
}

// For each update u and each of its tokens:
//   y[token, columns[u] :][: out] += scales[u] * ups[u] @ (downs[u] @ x[token])
// x [tokens, in], y [tokens, wide], downs [rank, in], ups [out, rank], both by columns.
void low_rank_(Tensor y, Tensor x, Tensors downs, Tensors ups, Integers begins, Integers ends,
               Integers columns, std::vector<double> scales, int64_t level) {
  check("x", x, 2, x);
  check("y", y, 2, x);
  std::vector<Update> items;
  for (size_t u = 0; u < downs.size(); ++u) {
    const Tensor &down = downs[u], &up = ups.at(u);
    check_factor("down", down, down.size(0), x.size(1), x);
    check_factor("up", up, up.size(0), down.size(0), x);
    Update all{};
    all.down = down.const_data_ptr();
    all.up = up.const_data_ptr();
    all.rank = down.size(0);
    all.out = up.size(0);
    all.scale = scales.at(u);
    add_pieces(items, all, y, x, begins.at(u), ends.at(u), columns.at(u));
  }
  run_all(items, kernels_of(level).update);
}

// For each adapter a and each of its tokens:
//   y[token] += ups[a] @ activation(downs[a] @ x[token] + down_biases[a]) + up_biases[a]
// x, y [tokens, width], downs [size, width], ups [width, size], both by columns.
void adapters_(Tensor y, Tensor x, Tensors downs, Tensors down_biases, Tensors ups,
               Tensors up_biases, Integers begins, Integers ends, int64_t activation, int64_t level) {
  check("x", x, 2, x);
  check("y", y, 2, x);
  STD_TORCH_CHECK(IDENTITY <= activation && activation <= LEAKY_RELU, "no activation ", activation);
  std::vector<Update> items;
  for (size_t a = 0; a < downs.size(); ++a) {
    const int64_t size = downs[a].size(0);
    check_factor("down", downs[a], size, x.size(1), x);
    check_shape("down bias", down_biases.at(a), {size}, x);
    check_factor("up", ups.at(a), y.size(1), size, x);
    check_shape("up bias", up_biases.at(a), {y.size(1)}, x);
    Update all{};
    all.down = downs[a].const_data_ptr();
    all.up = ups[a].const_data_ptr();
    all.down_bias = down_biases[a].const_data_ptr();
    all.up_bias = up_biases[a].const_data_ptr();
    all.rank = size;
    all.out = y.size(1);
    all.scale = 1.0f;
    all.activation = activation;
    add_pieces(items, all, y, x, begins.at(a), ends.at(a), 0);
  }
  run_all(items, kernels_of(level).update);
}

// For each norm n and each token from its predecessor's end to ends[n]:
//   y[token] = normalised(x[token]) * gains[n] + offsets[n]
// x, y [tokens, width], gains, offsets [width].
Tensor layer_norms(Tensor x, Tensors gains, Tensors offsets, Integers ends, double epsilon,
                   int64_t level) {
  const int64_t width = x.size(-1);
  check_shape("x", x, {x.size(0), width}, x);
  check_ends(ends, gains.size(), x.size(0));
  Tensor y = torch::stable::new_empty(x, {x.size(0), width});
  std::vector<LayerNorm> items;
  int64_t begin = 0;
  for (size_t n = 0; n < gains.size(); begin = ends[n], ++n) {
    check_shape("gain", gains[n], {width}, x);
    check_shape("offset", offsets.at(n), {width}, x);
    check_range(begin, ends.at(n), x.size(0));
    for (int64_t token = begin; token < ends[n]; token += MAX_TOKENS)
      items.push_back({
          .x = at(x, token * width),
          .gain = gains[n].const_data_ptr(),
          .offset = offsets[n].const_data_ptr(),
          .y = (void*)at(y, token * width),
          .tokens = std::min(MAX_TOKENS, ends[n] - token),
          .width = width,
          .epsilon = (float)epsilon,
          .is_half = is_half(x),
      });
  }
  run_all(items, kernels_of(level).normalise);
  return y;
}

// For each map m and each token from its predecessor's end to ends[m]:
//   y[token] = activation(x[token] @ weights[m].T + biases[m])
// with each token of x in 8-bit integers of its own scale.
// x [tokens, in], weights uint8 [blocks, in / 4, BLOCK, 4], scales [out] float32, biases [out] or none.
Tensor integer_linear(Tensor x, Tensors weights, Tensors scales, Tensors biases, Integers ends,
                      int64_t activation, int64_t level) {
  check("x", x, 2, x);
  check_ends(ends, weights.size(), x.size(0));
  STD_TORCH_CHECK(IDENTITY <= activation && activation <= LEAKY_RELU, "no activation ", activation);
  const int64_t tokens = x.size(0), in = x.size(1), out = scales.empty() ? 0 : scales[0].numel();
  const int64_t blocks = (out + BLOCK - 1) / BLOCK;
  Tensor y = torch::stable::new_empty(x, {tokens, out});
  const Kernels& kernels = kernels_of(level);
  // A product may read some tokens after its last one.
  const auto integers = std::make_unique_for_overwrite<char[]>((tokens + MAX_ROWS) * in);
  const auto token_scales = std::make_unique_for_overwrite<float[]>(tokens);
  const auto offsets = std::make_unique_for_overwrite<int32_t[]>(tokens);
  std::vector<Quantisation> rounded;
  for (int64_t token = 0; token < tokens; token += MAX_ROWS)
    rounded.push_back({
        .x = at(x, token * x.stride(0)),
        .integers = integers.get() + token * in,
        .token_scales = token_scales.get() + token,
        .offsets = offsets.get() + token,
        .x_stride = x.stride(0),
        .tokens = std::min(MAX_ROWS, tokens - token),
        .width = in,
        .is_half = is_half(x),
    });
  std::vector<IntegerProduct> products;
  int64_t begin = 0;
  for (size_t m = 0; m < weights.size(); begin = ends[m], ++m) {
    const Tensor &weight = weights[m], &scale = scales.at(m);
    STD_TORCH_CHECK(weight.is_cpu() && weight.scalar_type() == ScalarType::Byte && weight.dim() == 4 &&
                        weight.is_contiguous() && weight.size(0) == blocks &&
                        4 * weight.size(1) == in && weight.size(2) == BLOCK && weight.size(3) == 4,
                    "the weight must have blocks of integers for ", out, " outputs of ", in, " inputs");
    STD_TORCH_CHECK(scale.is_cpu() && scale.scalar_type() == ScalarType::Float &&
                        scale.is_contiguous() && scale.numel() == out,
                    "the scale must be float32 on the CPU, for ", out, " outputs");
    if (!biases.empty()) check_shape("bias", biases.at(m), {out}, x);
    check_range(begin, ends.at(m), tokens);
    for (int64_t token = begin; token < ends[m]; token += PANEL_TOKENS)
      for (int64_t column = 0; column < out; column += PANEL)
        products.push_back({
            .integers = integers.get() + token * in,
            .token_scales = token_scales.get() + token,
            .offsets = offsets.get() + token,
            .weight = (const uint8_t*)weight.const_data_ptr() + column * in,
            .output_scales = (const float*)scale.const_data_ptr() + column,
            .bias = biases.empty() ? nullptr : at(biases[m], column),
            .y = (void*)at(y, token * out + column),
            .y_stride = out,
            .tokens = std::min(PANEL_TOKENS, ends[m] - token),
            .in = in,
            .out = std::min(PANEL, out - column),
            .activation = (int)activation,
            .is_half = is_half(x),
        });
  }
  run_all(rounded, kernels.quantise);
  run_all(products, kernels.multiply_integers);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(nunatak_ops, library) {
  library.def("levels() -> int[]");
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor bounds, int left, int right, "
      "float scale, int level=-1) -> Tensor");
  library.def(
      "low_rank_(Tensor(a!) y, Tensor x, Tensor[] downs, Tensor[] ups, int[] begins, int[] ends, "
      "int[] columns, float[] scales, int level=-1) -> ()");
  library.def(
      "adapters_(Tensor(a!) y, Tensor x, Tensor[] downs, Tensor[] down_biases, Tensor[] ups, "
      "Tensor[] up_biases, int[] begins, int[] ends, int activation, int level=-1) -> ()");
  library.def(
      "layer_norms(Tensor x, Tensor[] gains, Tensor[] offsets, int[] ends, float epsilon, "
      "int level=-1) -> Tensor");
  library.def(
      "integer_linear(Tensor x, Tensor[] weights, Tensor[] scales, Tensor[] biases, int[] ends, "
      "int activation, int level=-1) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(nunatak_ops, CompositeExplicitAutograd, library) {
  library.impl("levels", TORCH_BOX(&levels));
}

STABLE_TORCH_LIBRARY_IMPL(nunatak_ops, CPU, library) {
  library.impl("attention", TORCH_BOX(&attention));
  library.impl("low_rank_", TORCH_BOX(&low_rank_));
  library.impl("adapters_", TORCH_BOX(&adapters_));
  library.impl("layer_norms", TORCH_BOX(&layer_norms));
  library.impl("integer_linear", TORCH_BOX(&integer_linear));
}
