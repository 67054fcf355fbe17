#include "pack.h"

#include <algorithm>
#include <cstring>

namespace mlx_tensorops::cpu {
namespace {

constexpr int64_t kGather = 256;

// Elements as they are, made contiguous, so that the kernels can convert them.
void gather(const Matrix& matrix, int64_t r, int64_t c0, int64_t columns, void* dst) {
  const int64_t size = size_of(matrix.type);
  auto src = static_cast<const char*>(matrix.at(r, c0));
  auto out = static_cast<char*>(dst);
  for (int64_t c = 0; c < columns; c++, out += size)
    std::memcpy(out, src + c * matrix.column * size, size);
}

}  // namespace

void pack_rows(const Kernels& kernels, const Matrix& matrix, int64_t r0, int64_t rows, int64_t c0,
               int64_t columns, float* dst, int64_t dst_stride) {
  if (matrix.column == 1 || columns == 1)
    return kernels.load(matrix.type, matrix.at(r0, c0), matrix.row, rows, columns, dst, dst_stride);
  if (matrix.row == 1 || rows == 1)
    return kernels.load_transposed(matrix.type, matrix.at(r0, c0), matrix.column, columns, rows,
                                   dst, dst_stride);
  float raw[kGather];
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c += kGather) {
      int64_t count = std::min(kGather, columns - c);
      gather(matrix, r0 + r, c0 + c, count, raw);
      kernels.load(matrix.type, raw, 0, 1, count, dst + r * dst_stride + c, 0);
    }
}

void pack_strips(const Kernels& kernels, const Matrix& b, int64_t k0, int64_t depth, int64_t n0,
                 int64_t columns, float* dst) {
  const int64_t width = kernels.tile_columns;
  if (b.column == 1)
    return kernels.load_strips(b.type, b.at(k0, n0), b.row, depth, columns, dst);
  if (b.row != 1) {
    float raw[kGather];
    for (int64_t k = 0; k < depth; k++)
      for (int64_t c = 0; c < columns; c += kGather) {
        int64_t count = std::min(kGather, columns - c);
        gather(b, k0 + k, n0 + c, count, raw);
        kernels.load_strips(b.type, raw, 0, 1, count, dst + c * kDepth + k * width);
      }
    return;
  }
  for (int64_t c = 0; c < columns; c += width, dst += width * kDepth) {
    int64_t count = std::min(width, columns - c);
    if (count < width) std::fill(dst, dst + depth * width, 0.0f);
    kernels.load_transposed(b.type, b.at(k0, n0 + c), b.column, count, depth, dst, width);
  }
}

}  // namespace mlx_tensorops::cpu
