// Rows grouped by expert and cut into tiles, as a node of MLX's graph.
#pragma once

#include "mlx/utils.h"
#include "primitive.h"

namespace mlx_tensorops::cpu {

class TilePlan : public CpuPrimitive {
 public:
  TilePlan(mlx::core::Stream stream, int num_experts, int block_m);

  Shapes output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "CpuTilePlan"; }

 protected:
  std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) override;

 private:
  int num_experts_;
  int block_m_;
};

// tile_expert, tile_row_start, tile_row_count (ceil(rows / block_m) + num_experts entries: as many as any ids
// need), order (sorted position -> row), inverse (row -> sorted position), dropped (rows with an id outside
// 0 .. num_experts - 1; they stand last, in tiles of expert -1). Unused tiles: expert -1, start = rows, count 0.
Arrays tile_plan(const mlx::core::array& ids, int num_experts, int block_m, mlx::core::StreamOrDevice stream = {});

}  // namespace mlx_tensorops::cpu
