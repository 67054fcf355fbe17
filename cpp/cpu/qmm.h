// The product with block-quantised weights as a node of MLX's graph.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "mlx/utils.h"
#include "primitive.h"
#include "weight_arrays.h"

namespace mlx_tensorops::cpu {

// A factor of the whole sum: the first element of the pair over the second.
using GlobalScale = std::optional<std::pair<mlx::core::array, float>>;

class QuantizedMatmul : public CpuPrimitive {
 public:
  // Which optional inputs follow x, w and scales is part of the operation; no size is.
  struct Options {
    std::shared_ptr<const WeightFormat> format;
    bool transpose;
    mlx::core::Dtype out_type;
    bool biases, global_scale;
    float divisor;
    bool bias;
    Activation activation;
    bool residual;
  };

  QuantizedMatmul(mlx::core::Stream stream, Options options);

  // With respect to x, bias and residual.
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  // The mapped axis becomes the first batch axis of the operands that have it.
  ArraysAndAxes vmap(const Arrays& inputs, const std::vector<int>& axes) override;
  Shapes output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "CpuQuantizedMatmul"; }

 protected:
  std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) override;

 private:
  Options options_;
};

// act((x @ weights) * global scale + bias) + residual, summed in f32 and rounded once to out_type.
mlx::core::array quantized_matmul(const mlx::core::array& x, const mlx::core::array& w, const mlx::core::array& scales,
                                  const std::optional<mlx::core::array>& biases, std::shared_ptr<const WeightFormat> format,
                                  bool transpose, mlx::core::Dtype out_type, const GlobalScale& global_scale = std::nullopt,
                                  const std::optional<mlx::core::array>& bias = std::nullopt,
                                  Activation activation = Activation::none,
                                  const std::optional<mlx::core::array>& residual = std::nullopt,
                                  mlx::core::StreamOrDevice stream = {});

}  // namespace mlx_tensorops::cpu
