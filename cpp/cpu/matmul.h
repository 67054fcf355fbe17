// The matrix product as a node of MLX's graph.
#pragma once

#include <optional>
#include <string>

#include "gemm.h"
#include "mlx/utils.h"
#include "primitive.h"

namespace mlx_tensorops::cpu {

class Matmul : public CpuPrimitive {
 public:
  // Which optional inputs follow a and b is part of the operation; no size is (see output_shapes).
  struct Options {
    mlx::core::Dtype out_type;
    Activation activation;
    bool bias;
    bool residual;
  };

  Matmul(mlx::core::Stream stream, Options options);

  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  // The mapped axis becomes the first batch axis of the operands that have it.
  ArraysAndAxes vmap(const Arrays& inputs, const std::vector<int>& axes) override;
  Shapes output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "CpuMatmul"; }

 protected:
  std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) override;

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
