// Operands of any strides into f32 blocks.
#pragma once

#include "gemm.h"

namespace mlx_tensorops::cpu {

// dst[r][c] = matrix[r0 + r][c0 + c].
void pack_rows(const Kernels&, const Matrix&, int64_t r0, int64_t rows, int64_t c0, int64_t columns,
               float* dst, int64_t dst_stride);

// Rows k0.. of b, columns n0.., as zero-padded strips (Kernels::load_strips).
void pack_strips(const Kernels&, const Matrix& b, int64_t k0, int64_t depth, int64_t n0,
                 int64_t columns, float* dst);

}  // namespace mlx_tensorops::cpu
