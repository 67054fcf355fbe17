#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "counters.h"
#include "pack.h"
#include "quant_rows.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kStripColumns = 64;  // strips decoded or packed at a time
constexpr int64_t kPackedRows = block_rows() * kDepth;
constexpr int64_t kStrips = kStripColumns * kDepth;
static_assert(kPackedRows + kStrips + scale_scratch(kStripColumns * kDepth) <= multiply_scratch());
static_assert(multiply_scratch() + scratch_for_sums() + kFinishScratch <= kScratch);

// The few-row kernels read all of x again for each weight row: half of an L1 of 32 KiB holds it, in pieces along K.
constexpr int64_t kDotValues = 4096, kDotUnit = 512;
// Weight rows whose scales are made ready at a time: few enough that the scales stay in L1, too.
constexpr int64_t kDotScales = 1024, kDotColumns = 64;
static_assert(kDotValues / kFewRows >= kDotUnit && 2 * kDotValues <= kPackedRows);
static_assert(3 * std::max(kDotScales, kDotValues / kStepCodes + 1) <= kStrips);

// Rows of x, columns k0.. of them, as f32.
void pack_x(const Kernels& kernels, const Rows& rows, int64_t k0, int64_t depth, float* dst, int64_t dst_stride) {
  Matrix x{rows.x, rows.type, rows.row_stride, rows.k_stride};
  if (!rows.index) return pack_rows(kernels, x, 0, rows.count, k0, depth, dst, dst_stride);
  // Scattered rows are too short for the hardware to see them coming: fetched ahead, packing 32 rows takes 0.6 of the time.
  constexpr int64_t kAhead = 8, kLine = 64;
  const int64_t bytes = rows.k_stride == 1 ? depth * size_of(rows.type) : 0;
  for (int64_t r = 0; r < rows.count; r++) {
    if (r + kAhead < rows.count) {
      auto next = static_cast<const char*>(x.at(rows.index[r + kAhead], k0));
      for (int64_t b = 0; b < bytes; b += kLine) __builtin_prefetch(next + b);
    }
    pack_rows(kernels, x, rows.index[r], 1, k0, depth, dst + r * dst_stride, dst_stride);
  }
}

Matrix dense(const Weights& w) {
  const int64_t size = size_of(w.type), row = w.w_row / size, step = w.w_step / size;
  return {w.w, w.type, w.transpose ? step : row, w.transpose ? row : step};
}

// Codes stored along N that are decoded next. A stored row is left for the next one after a line or two, which no hardware prefetcher
// follows, and decoding would wait for each line: up to half of the time of 16 rows.
class Upcoming {
 public:
  Upcoming() = default;  // none
  Upcoming(const Weights& w, int64_t k0, int64_t depth, int64_t n0, int64_t columns)
      : row_(w.w + k0 * w.w_row + n0 / 8 * w.format->bits), last_(columns / 8 * w.format->bits - 1), stride_(w.w_row), rows_(depth) {}

  int64_t rows() const { return rows_; }

  // The next `count` rows into L2: L1 has no room for them beside the strips.
  void fetch(int64_t count) {
    for (; count > 0 && rows_ > 0; count--, rows_--, row_ += stride_) {
      __builtin_prefetch(row_, 0, 2);
      __builtin_prefetch(row_ + last_, 0, 2);
    }
  }

 private:
  static_assert(kStripColumns <= 64);  // so that two lines hold a row of 8 bits
  const char* row_ = nullptr;
  int64_t last_ = 0, stride_ = 0, rows_ = 0;
};

// Weights decoded (or converted) into strips, and the register tile.
void by_strips(const Rows& rows, const Product* products, int count, int64_t n0, int64_t columns, int64_t stride, float* scratch,
               const Kernels& kernels) {
  float* packed = scratch;
  float* strips = packed + kPackedRows;
  float* scales = strips + kStrips;
  const int64_t k = products[0].weights.k;
  const bool far_apart = products[0].weights.format && !products[0].weights.transpose;
  auto codes = [&](int i, int64_t k0, int64_t g0) {
    if (!far_apart || k0 >= k) return Upcoming();
    return Upcoming(products[i].weights, k0, std::min(kDepth, k - k0), n0 + g0, std::min(kStripColumns, columns - g0));
  };
  auto codes_after = [&](int i, int64_t k0, int64_t g0) {
    if (g0 + kStripColumns < columns) return codes(i, k0, g0 + kStripColumns);
    return i + 1 < count ? codes(i + 1, k0, 0) : codes(0, k0 + kDepth, 0);
  };
  auto add = [&](const Product& p, int64_t k0, int64_t depth, int64_t g0, Upcoming next) {
    const int64_t group = std::min(kStripColumns, columns - g0);
    if (p.weights.format) decode_strips(kernels, p.weights, k0, depth, n0 + g0, group, strips, scales);
    else pack_strips(kernels, dense(p.weights), k0, depth, n0 + g0, group, strips);
    // A few with each tile: the processor computes while they come.
    const int64_t few = ceil_div(next.rows(), ceil_div(group, kernels.tile_columns) * ceil_div(rows.count, kernels.tile_rows));
    for (int64_t c = 0; c < group; c += kernels.tile_columns)
      for (int64_t r = 0; r < rows.count; r += kernels.tile_rows) {
        next.fetch(few);
        kernels.tile(depth, packed + r * kDepth, strips + c * kDepth, p.sums + r * stride + g0 + c, stride,
                     std::min(kernels.tile_rows, rows.count - r), std::min(kernels.tile_columns, group - c), k0 > 0);
      }
  };
  for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
    const int64_t depth = std::min(kDepth, k - k0);
    pack_x(kernels, rows, k0, depth, packed, kDepth);
    for (int i = 0; i < count; i++)
      for (int64_t g0 = 0; g0 < columns; g0 += kStripColumns) add(products[i], k0, depth, g0, codes_after(i, k0, g0));
  }
}

// A few rows: weights decoded into registers.
void by_dots(const Rows& rows, const Product* products, int products_count, int64_t n0, int64_t columns, int64_t stride, float* scratch,
             const Kernels& kernels) {
  const QuantKernels& quant = *kernels.quant;
  const WeightFormat& format = *products[0].weights.format;
  const int64_t padded = padded_rows(rows.count), k = products[0].weights.k;
  const int64_t most = std::min(kDotValues / padded / kDotUnit * kDotUnit, k);
  float* plain = scratch;
  float* ordered = plain + rows.count * most;
  float* scales = scratch + kPackedRows;
  for (int64_t k0 = 0; k0 < k; k0 += most) {
    const int64_t depth = std::min(most, k - k0);
    pack_x(kernels, rows, k0, depth, plain, most);
    for (int64_t r = 0; r < padded; r++)
      quant.order_for_dot(format, plain + std::min(r, rows.count - 1) * most, depth, ordered + r * kStepCodes, padded * kStepCodes);
    const bool tame_x = rows.count == 1 && quant.tame(plain, depth);
    const int64_t width = std::clamp<int64_t>(kDotScales / scales_per_row(format, depth), 1, kDotColumns);
    for (int i = 0; i < products_count; i++)
      for (int64_t c = 0; c < columns; c += width) {
        const int64_t count = std::min(width, columns - c);
        const QuantRows q = quant_rows(kernels, products[i].weights, n0 + c, count, k0, depth, scales);
        const bool tame = tame_x && (format.scale == ScaleType::e4m3 || quant.tame(q.scales, count * q.scale_stride));
        quant.dot(q, rows.count, depth, ordered, count, products[i].sums + c, stride, k0 > 0, tame);
      }
  }
}

float e4m3_value(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float value = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
  if ((byte & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return byte & 0x80 ? -value : value;
}

float e2m1_value(int code) {
  constexpr float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = magnitudes[code & 7];
  return code & 8 ? -value : value;
}

// Whether every value is a bf16 number; if so, its bytes.
bool split_nibbles(WeightFormat& f) {
  for (int code = 0; code < 16; code++) {
    uint32_t bits;
    std::memcpy(&bits, &f.values[code], 4);
    if (bits & 0xffff) return false;
    f.low[code] = static_cast<uint8_t>(bits >> 16);
    f.high[code] = static_cast<uint8_t>(bits >> 24);
  }
  return true;
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
  if (f.bits <= 2) f.decoding = Decoding::levels;
  else if (f.bits == 4 && split_nibbles(f)) f.decoding = Decoding::nibbles;
  else if (f.codes == Codes::integer) f.decoding = f.bits == 8 ? Decoding::bytes : Decoding::integers;
  else f.decoding = f.codes == Codes::e4m3 ? Decoding::e4m3 : Decoding::lookup;
  return f;
}

Weights WeightBatch::at(int64_t index) const {
  Weights result = first;
  result.w += w.offset(index);
  if (result.scales) result.scales += scales.offset(index);
  if (result.biases) result.biases += biases.offset(index);
  return result;
}

void multiply_rows(const Rows& rows, const Product* products, int count, int64_t n0, int64_t columns, int64_t stride, float* scratch,
                   const Settings& settings) {
  const Kernels& kernels = *settings.kernels;
  const Weights& w = products[0].weights;
  if (rows.count == 0 || columns == 0) return;
  if (w.k == 0) {
    for (int i = 0; i < count; i++)
      for (int64_t r = 0; r < rows.count; r++) std::fill_n(products[i].sums + r * stride, columns, 0.0f);
    return;
  }
  const bool few = rows.count <= kFewRows && w.format && w.transpose && kernels_take(*w.format);
  (few ? by_dots : by_strips)(rows, products, count, n0, columns, stride, scratch, kernels);
  Counters& counted = counters();
  counted.panels.fetch_add(count, std::memory_order_relaxed);
  counted.x_packed.fetch_add(rows.count * w.k, std::memory_order_relaxed);
  if (w.format) counted.weights_decoded.fetch_add(count * w.k * columns, std::memory_order_relaxed);
}

void multiply_rows(const Rows& rows, const Weights& w, int64_t n0, int64_t columns, float* sums, int64_t stride, float* scratch,
                   const Settings& settings) {
  const Product product{w, sums};
  multiply_rows(rows, &product, 1, n0, columns, stride, scratch, settings);
}

}  // namespace mlx_tensorops::cpu
