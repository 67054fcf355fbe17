// The matrix product as a node of MLX's graph.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "gemm.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace mlx_tensorops::cpu {

class Matmul : public mlx::core::Primitive {
 public:
  // Which optional inputs follow a and b is part of the operation; no size is (see output_shapes).
  struct Options {
    mlx::core::Dtype out_type;
    Activation activation;
    bool bias;
    bool residual;
  };

  Matmul(mlx::core::Stream stream, Options options);

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  std::vector<mlx::core::array> vjp(const std::vector<mlx::core::array>& primals,
                                    const std::vector<mlx::core::array>& cotangents,
                                    const std::vector<int>& argnums,
                                    const std::vector<mlx::core::array>& outputs) override;
  std::vector<mlx::core::array> jvp(const std::vector<mlx::core::array>& primals,
                                    const std::vector<mlx::core::array>& tangents,
                                    const std::vector<int>& argnums) override;
  // The mapped axis becomes the first batch axis of the operands that have it.
  std::pair<std::vector<mlx::core::array>, std::vector<int>> vmap(
      const std::vector<mlx::core::array>& inputs, const std::vector<int>& axes) override;
  std::vector<mlx::core::Shape> output_shapes(
      const std::vector<mlx::core::array>& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "CpuMatmul"; }

 private:
  Options options_;
};

// act(a @ b + bias) + residual, in f32, rounded once to out_type.
mlx::core::array matmul(const mlx::core::array& a, const mlx::core::array& b,
                        mlx::core::Dtype out_type,
                        const std::optional<mlx::core::array>& bias = std::nullopt,
                        Activation activation = Activation::none,
                        const std::optional<mlx::core::array>& residual = std::nullopt,
                        mlx::core::StreamOrDevice stream = {});

// "", "relu", "gelu_tanh", "gelu_erf" or "silu".
Activation activation_of(const std::string& name);

}  // namespace mlx_tensorops::cpu
