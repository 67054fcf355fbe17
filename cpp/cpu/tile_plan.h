// Rows grouped by expert and cut into tiles, as a node of MLX's graph.
#pragma once

#include <utility>

#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace mlx_tensorops::cpu {

class TilePlan : public mlx::core::Primitive {
 public:
  TilePlan(mlx::core::Stream stream, int num_experts, int block_m);

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  std::vector<mlx::core::Shape> output_shapes(
      const std::vector<mlx::core::array>& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "CpuTilePlan"; }

 private:
  int num_experts_;
  int block_m_;
};

// tile_expert, tile_row_start, tile_row_count (ceil(rows / block_m) + num_experts entries: as many as any ids
// need), order (sorted position -> row), inverse (row -> sorted position), dropped (rows with an id outside
// 0 .. num_experts - 1; they stand last, in tiles of expert -1). Unused tiles: expert -1, start = rows, count 0.
std::vector<mlx::core::array> tile_plan(const mlx::core::array& ids, int num_experts, int block_m,
                                        mlx::core::StreamOrDevice stream = {});

}  // namespace mlx_tensorops::cpu
