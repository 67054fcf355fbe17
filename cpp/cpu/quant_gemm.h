// out = cast(act((a @ weights) * global scale + bias) + residual) on the CPU, over raw pointers: no MLX in here.
#pragma once

#include "gemm.h"
#include "weights.h"

namespace mlx_tensorops::cpu {

struct QuantGemm {
  Gemm gemm;  // all but b; its batch may lack the last axes, along which nothing of the weights varies: they are rows then
  WeightBatch weights;
  const float* global_scale = nullptr;  // null: none
  Axes global_scales;
  float divisor = 1.0f;
  int64_t folded = 1;  // elements of the weights' batch for one of the gemm's
};

void quant_gemm(const QuantGemm&, const Settings&);

}  // namespace mlx_tensorops::cpu
