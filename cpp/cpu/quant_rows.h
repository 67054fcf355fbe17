// Blocks of block-quantised weights, with their scales in f32, for the kernels.
#pragma once

#include "weights.h"

namespace mlx_tensorops::cpu {

// Whether the kernels can decode the format; decode_strips() takes any.
bool kernels_take(const WeightFormat&);

// Scales that quant_rows() makes of `count` weights of one stored row, at most.
int64_t scales_per_row(const WeightFormat&, int64_t count);

// Floats that the scales (and biases) of `weights` weights take at most.
constexpr int64_t scale_scratch(int64_t weights) { return 3 * weights / kStepCodes; }

// Stored rows r0.., weights i0.. of each; i0 and count are multiples of kStepCodes. `scratch` holds the scales.
QuantRows quant_rows(const Kernels&, const Weights&, int64_t r0, int64_t rows, int64_t i0, int64_t count, float* scratch);

// W[k0 + k][n0 + c] as zero-padded strips (Kernels::load_strips); scale_scratch(kDepth * columns) floats of scratch.
void decode_strips(const Kernels&, const Weights&, int64_t k0, int64_t depth, int64_t n0, int64_t columns, float* dst, float* scratch);

}  // namespace mlx_tensorops::cpu
