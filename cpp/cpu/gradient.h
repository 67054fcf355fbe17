// Gradients of Matmul, built from the same operation.
#pragma once

#include <optional>
#include <vector>

#include "kernels.h"
#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_tensorops::cpu {

// One array for each of argnums, which count a, b, bias (if any), residual (if any).
std::vector<mlx::core::array> gradients(const mlx::core::array& a, const mlx::core::array& b,
                                        const std::optional<mlx::core::array>& bias,
                                        const std::optional<mlx::core::array>& residual,
                                        Activation activation, const mlx::core::array& cotangent,
                                        const std::vector<int>& argnums,
                                        mlx::core::Stream stream);

// The directional derivative along the given tangents; an input without one is a constant.
mlx::core::array tangent(const mlx::core::array& a, const mlx::core::array& b,
                         const std::optional<mlx::core::array>& bias,
                         const std::optional<mlx::core::array>& along_a,
                         const std::optional<mlx::core::array>& along_b,
                         const std::optional<mlx::core::array>& along_bias,
                         const std::optional<mlx::core::array>& along_residual,
                         Activation activation, mlx::core::Dtype out_type, mlx::core::Stream stream);

// What other products with an epilogue need for theirs.
// The activation as operations that MLX can differentiate.
mlx::core::array apply(Activation activation, const mlx::core::array& x, mlx::core::Stream stream);
// x summed over the dimensions in which `shape` was broadcast to x's, and cast.
mlx::core::array sum_to(mlx::core::array x, const mlx::core::Shape& shape, mlx::core::Dtype type, mlx::core::Stream stream);
// Cotangent and tangent through the activation, in f32; `before` is its argument.
mlx::core::array pull_back(Activation activation, const mlx::core::array& before, const mlx::core::array& cotangent, mlx::core::Stream stream);
mlx::core::array push_forward(Activation activation, const mlx::core::array& before, const mlx::core::array& tangent, mlx::core::Stream stream);

}  // namespace mlx_tensorops::cpu
