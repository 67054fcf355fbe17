// MLX arrays as the operands of a product: matrices, batches, addends.
#pragma once

#include <optional>
#include <vector>

#include "gather_arrays.h"
#include "gemm.h"
#include "mlx/stream.h"

namespace mlx_tensorops::cpu {

// Strides of the batch dimensions of x, aligned to `batch`; 0 where x is broadcast.
std::vector<int64_t> batch_strides(const mlx::core::array& x, const std::vector<int64_t>& batch);

// The last two dimensions.
Matrix matrix_of(const char* op, const mlx::core::array& x);

// A bias or a residual: it may lack dimensions, or have ones where the result has more.
void check_addend(const char* op, const char* name, const mlx::core::array& x, const mlx::core::Shape& result);

// act(a @ b + bias) + residual into `out`, with everything but b.
Gemm gemm_of(const char* op, const mlx::core::array& a, mlx::core::array& out, const std::optional<mlx::core::array>& bias,
             Activation activation, const std::optional<mlx::core::array>& residual);

// Batches that read the same b are more rows of one product, if their rows of a continue each other.
void fold_batches_into_rows(Gemm& g);

// For vmap: the mapped axis in front, and ones so that `rank` axes follow it.
mlx::core::array lead(const mlx::core::array& x, int axis, int rank, mlx::core::Stream stream);
// The same of an x that is not mapped: it is broadcast along a first axis of `size`.
mlx::core::array lead_broadcast(const mlx::core::array& x, int size, int rank, mlx::core::Stream stream);

}  // namespace mlx_tensorops::cpu
