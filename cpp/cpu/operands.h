// MLX arrays as the operands of a product: matrices, batches, addends.
#pragma once

#include <vector>

#include "gather_arrays.h"
#include "gemm.h"

namespace mlx_tensorops::cpu {

// Strides of the batch dimensions of x, aligned to `batch`; 0 where x is broadcast.
std::vector<int64_t> batch_strides(const mlx::core::array& x, const std::vector<int64_t>& batch);

// The last two dimensions.
Matrix matrix_of(const char* op, const mlx::core::array& x);

// A bias or a residual: it may lack dimensions, or have ones where the result has more.
void check_addend(const char* op, const char* name, const mlx::core::array& x, const mlx::core::Shape& result);
Matrix addend_of(const char* op, const mlx::core::array& x, const mlx::core::Shape& result);

// Batches that read the same b are more rows of one product, if their rows of a continue each other.
void fold_batches_into_rows(Gemm& g);

}  // namespace mlx_tensorops::cpu
