#include "weights.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "counters.h"
#include "pack.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kStripColumns = 64;  // strips decoded or packed at a time
constexpr int64_t kPackedRows = block_rows() * kDepth;
constexpr int64_t kStrips = kStripColumns * kDepth;
static_assert(kPackedRows + kStrips <= multiply_scratch());
static_assert(multiply_scratch() + scratch_for_sums() + kFinishScratch <= kScratch);

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float e4m3_value(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float value = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
  if ((byte & 0x7f) == 0x7f) value = kNaN;
  return byte & 0x80 ? -value : value;
}

float e8m0_value(int byte) {
  return byte == 255 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0f, byte - 127);
}

float e2m1_value(int code) {
  constexpr float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = magnitudes[code & 7];
  return code & 8 ? -value : value;
}

// Rows of x, columns k0.. of them, as f32 with the row stride kDepth.
void pack_x(const Kernels& kernels, const Rows& rows, int64_t k0, int64_t depth, float* dst) {
  Matrix x{rows.x, rows.type, rows.row_stride, rows.k_stride};
  if (!rows.index) return pack_rows(kernels, x, 0, rows.count, k0, depth, dst, kDepth);
  for (int64_t r = 0; r < rows.count; r++) pack_rows(kernels, x, rows.index[r], 1, k0, depth, dst + r * kDepth, kDepth);
}

float one_scale(const Kernels& kernels, const Weights& w, int64_t row, int64_t group) {
  const char* scales = w.scales + row * w.scales_row;
  if (w.format->scale == ScaleType::e4m3) return e4m3_value(static_cast<unsigned char>(scales[group]));
  if (w.format->scale == ScaleType::e8m0) return e8m0_value(static_cast<unsigned char>(scales[group]));
  float scale;
  kernels.load(w.type, scales + group * size_of(w.type), 0, 1, 1, &scale, 0);
  return scale;
}

float one_weight(const Kernels& kernels, const Weights& w, int64_t row, int64_t i) {
  const int bits = w.format->bits;
  const auto* codes = reinterpret_cast<const unsigned char*>(w.w) + row * w.w_row + i / 8 * bits;
  uint64_t pack = 0;
  std::memcpy(&pack, codes, bits);
  const float value = w.format->values[pack >> i % 8 * bits & ((1u << bits) - 1)];
  const int64_t group = i / w.format->group;
  const float scale = one_scale(kernels, w, row, group);
  if (!w.biases) return value * scale;
  float bias;
  kernels.load(w.type, w.biases + row * w.biases_row + group * size_of(w.type), 0, 1, 1, &bias, 0);
  return std::fma(value, scale, bias);
}

void decode_strips(const Kernels& kernels, const Weights& w, int64_t k0, int64_t depth, int64_t n0, int64_t columns, float* dst) {
  const int64_t width = kernels.tile_columns;
  for (int64_t c = 0; c < columns; c += width, dst += width * kDepth)
    for (int64_t k = 0; k < depth; k++)
      for (int64_t j = 0; j < width; j++) {
        const int64_t at_k = k0 + k, at_n = n0 + c + j;
        dst[k * width + j] = c + j >= columns ? 0.0f
                             : w.transpose    ? one_weight(kernels, w, at_n, at_k)
                                              : one_weight(kernels, w, at_k, at_n);
      }
}

Matrix dense(const Weights& w) {
  const int64_t size = size_of(w.type), row = w.w_row / size, step = w.w_step / size;
  return {w.w, w.type, w.transpose ? step : row, w.transpose ? row : step};
}

}  // namespace

WeightFormat finished(WeightFormat f) {
  auto fail = [](const std::string& text) { throw std::invalid_argument("[weight format] " + text); };
  if (f.bits < 1 || f.bits > 8) fail("bits = " + std::to_string(f.bits) + ", but must be in 1..8");
  if (f.group < 8 || f.group % 8) fail("group = " + std::to_string(f.group) + ", but must be a positive multiple of 8");
  if (f.codes == Codes::e2m1 && f.bits != 4) fail("e2m1 codes have 4 bits");
  if (f.codes == Codes::e4m3 && f.bits != 8) fail("e4m3 codes have 8 bits");
  for (int code = 0; code < 1 << f.bits && f.codes != Codes::table; code++)
    f.values[code] = f.codes == Codes::e2m1 ? e2m1_value(code) : f.codes == Codes::e4m3 ? e4m3_value(code) : float(code);
  return f;
}

Weights WeightBatch::at(int64_t index) const {
  Weights result = first;
  result.w += w.offset(index);
  if (result.scales) result.scales += scales.offset(index);
  if (result.biases) result.biases += biases.offset(index);
  return result;
}

void multiply_rows(const Rows& rows, const Weights& w, int64_t n0, int64_t columns, float* sums, int64_t stride, float* scratch,
                   const Settings& settings) {
  const Kernels& kernels = *settings.kernels;
  if (w.k == 0)
    for (int64_t r = 0; r < rows.count; r++) std::fill_n(sums + r * stride, columns, 0.0f);
  float* packed = scratch;
  float* strips = packed + kPackedRows;
  for (int64_t k0 = 0; k0 < w.k; k0 += kDepth) {
    const int64_t depth = std::min(kDepth, w.k - k0);
    pack_x(kernels, rows, k0, depth, packed);
    for (int64_t g0 = 0; g0 < columns; g0 += kStripColumns) {
      const int64_t group = std::min(kStripColumns, columns - g0);
      if (w.format) decode_strips(kernels, w, k0, depth, n0 + g0, group, strips);
      else pack_strips(kernels, dense(w), k0, depth, n0 + g0, group, strips);
      for (int64_t c = 0; c < group; c += kernels.tile_columns)
        for (int64_t r = 0; r < rows.count; r += kernels.tile_rows)
          kernels.tile(depth, packed + r * kDepth, strips + c * kDepth, sums + r * stride + g0 + c, stride,
                       std::min(kernels.tile_rows, rows.count - r), std::min(kernels.tile_columns, group - c), k0 > 0);
    }
  }
  Counters& count = counters();
  count.panels.fetch_add(1, std::memory_order_relaxed);
  if (w.format) count.weights_decoded.fetch_add(w.k * columns, std::memory_order_relaxed);
}

}  // namespace mlx_tensorops::cpu
