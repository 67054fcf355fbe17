#include "quant_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

template <int kBytes>
void join(const char* src, int64_t row, int64_t rows, char* dst) {
  for (int64_t r = 0; r < rows; r++) std::memcpy(dst + r * kBytes, src + r * row, kBytes);
}

// Rows of `bytes` bytes one behind the other; false for a length that rarely occurs.
bool join(const char* src, int64_t row, int64_t rows, int64_t bytes, char* dst) {
  switch (bytes) {
    case 1: return join<1>(src, row, rows, dst), true;
    case 2: return join<2>(src, row, rows, dst), true;
    case 4: return join<4>(src, row, rows, dst), true;
    case 8: return join<8>(src, row, rows, dst), true;
    case 16: return join<16>(src, row, rows, dst), true;
    default: return false;
  }
}

// Scales or biases of groups first.. of `rows` stored rows, in f32. A call of a kernel for one or two scales of a row takes longer than
// the vectors that convert them: short rows are joined first.
void load_scales(const Kernels& kernels, ScaleType kind, Type type, const char* src, int64_t row, int64_t rows, int64_t first, int64_t groups,
                 float* dst) {
  constexpr int64_t kJoined = 512;
  const int64_t size = kind == ScaleType::floating ? size_of(type) : 1, bytes = groups * size;
  src += first * size;
  auto convert = [&](const char* from, int64_t count) {
    if (kind == ScaleType::floating) kernels.load(type, from, 0, 1, count, dst, 0);
    else kernels.quant->scales(kind, reinterpret_cast<const uint8_t*>(from), count, dst);
    dst += count;
  };
  if (row == bytes) return convert(src, rows * groups);
  for (int64_t r = 0; r < rows;) {
    alignas(16) char joined[kJoined];
    const int64_t together = std::clamp<int64_t>(kJoined / bytes, 1, rows - r);
    const bool short_rows = together > 1 && join(src, row, together, bytes, joined);
    convert(short_rows ? joined : src, short_rows ? together * groups : groups);
    const int64_t done = short_rows ? together : 1;
    r += done, src += done * row;
  }
}

// One weight, whatever the format.
float one_weight(const Kernels& kernels, const Weights& w, int64_t row, int64_t i) {
  const WeightFormat& f = *w.format;
  uint64_t pack = 0;
  std::memcpy(&pack, w.w + row * w.w_row + i / 8 * f.bits, f.bits);
  const float value = f.values[pack >> i % 8 * f.bits & ((1u << f.bits) - 1)];
  float scale, bias;
  load_scales(kernels, f.scale, w.type, w.scales + row * w.scales_row, 0, 1, i / f.group, 1, &scale);
  if (!w.biases) return value * scale;
  load_scales(kernels, ScaleType::floating, w.type, w.biases + row * w.biases_row, 0, 1, i / f.group, 1, &bias);
  return std::fma(value, scale, bias);
}

// Whether the group of a step is a shift away; if not, there is a scale for each step.
bool shifts(const WeightFormat& f) {
  const int64_t steps = f.group / kStepCodes;
  return (steps & (steps - 1)) == 0;
}

}  // namespace

bool kernels_take(const WeightFormat& f) {
  return f.group % kStepCodes == 0;
}

int64_t scales_per_row(const WeightFormat& f, int64_t count) {
  return shifts(f) ? ceil_div(count, f.group) + 1 : count / kStepCodes;
}

QuantRows quant_rows(const Kernels& kernels, const Weights& w, int64_t r0, int64_t rows, int64_t i0, int64_t count, float* scratch) {
  const WeightFormat& f = *w.format;
  QuantRows q{};
  q.format = &f;
  q.codes = reinterpret_cast<const uint8_t*>(w.w) + r0 * w.w_row + i0 / 8 * f.bits;
  q.stride = w.w_row;
  const int64_t steps = count / kStepCodes, first = i0 / f.group, groups = ceil_div(i0 + count, f.group) - first;
  const bool by_group = shifts(f);
  q.shift = by_group ? std::countr_zero(static_cast<uint64_t>(f.group / kStepCodes)) : 0;
  q.phase = by_group ? i0 % f.group / kStepCodes : 0;
  q.scale_stride = by_group ? groups : steps;
  float* raw = scratch + 2 * rows * q.scale_stride;
  auto load = [&](ScaleType kind, const char* src, int64_t row, float* dst) {
    load_scales(kernels, kind, w.type, src + r0 * row, row, rows, first, groups, by_group ? dst : raw);
    for (int64_t r = 0; r < rows && !by_group; r++)  // one for each step
      for (int64_t s = 0; s < steps; s++) dst[r * steps + s] = raw[r * groups + (i0 + s * kStepCodes) / f.group - first];
    return dst;
  };
  q.scales = load(f.scale, w.scales, w.scales_row, scratch);
  float* biases = scratch + rows * q.scale_stride;
  if (w.biases) {
    q.biases = load(ScaleType::floating, w.biases, w.biases_row, biases);
  } else if (f.decoding != Decoding::nibbles && f.decoding != Decoding::e4m3) {  // the other decoders always add one
    std::fill_n(biases, rows * q.scale_stride, 0.0f);
    q.biases = biases;
  }
  return q;
}

void decode_strips(const Kernels& kernels, const Weights& w, int64_t k0, int64_t depth, int64_t n0, int64_t columns, float* dst, float* scratch) {
  if (kernels_take(*w.format)) {
    if (w.transpose) return kernels.quant->strips_of_rows(quant_rows(kernels, w, n0, columns, k0, depth, scratch), columns, depth, dst);
    return kernels.quant->strips_of_columns(quant_rows(kernels, w, k0, depth, n0, columns, scratch), depth, columns, dst);
  }
  const int64_t width = kernels.tile_columns;
  for (int64_t c = 0; c < columns; c += width, dst += width * kDepth)
    for (int64_t k = 0; k < depth; k++)
      for (int64_t j = 0; j < width; j++) {
        const int64_t at_k = k0 + k, at_n = n0 + c + j;
        dst[k * width + j] = c + j >= columns ? 0.0f : w.transpose ? one_weight(kernels, w, at_n, at_k) : one_weight(kernels, w, at_k, at_n);
      }
}

}  // namespace mlx_tensorops::cpu
