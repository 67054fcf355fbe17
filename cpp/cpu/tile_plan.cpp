#include "tile_plan.h"

#include <algorithm>
#include <limits>

#include "gather_arrays.h"
#include "routes.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

constexpr const char* kOp = "cpu_tile_plan";

struct Plan {
  int32_t *tile_expert, *tile_row_start, *tile_row_count, *order, *inverse, *dropped;
};

void build(const Indices& ids, int64_t rows, int64_t tiles, int64_t experts, int64_t block_m,
           const Plan& plan) {
  const Groups groups = group([&](int64_t i) { return ids.at(i); }, 0, rows, experts);
  int64_t tile = 0;
  auto put = [&](int64_t expert, int64_t start, int64_t count) {
    plan.tile_expert[tile] = static_cast<int32_t>(expert);
    plan.tile_row_start[tile] = static_cast<int32_t>(start);
    plan.tile_row_count[tile] = static_cast<int32_t>(count);
    tile++;
  };
  for (int64_t e = 0; e <= experts; e++)
    for (int64_t row = groups.begin[e]; row < groups.begin[e + 1]; row += block_m)
      put(e < experts ? e : -1, row, std::min(block_m, groups.begin[e + 1] - row));
  while (tile < tiles) put(-1, rows, 0);
  std::copy(groups.order.begin(), groups.order.end(), plan.order);
  for (int64_t i = 0; i < rows; i++) plan.inverse[groups.order[i]] = static_cast<int32_t>(i);
  *plan.dropped = static_cast<int32_t>(groups.size(experts));
}

}  // namespace

TilePlan::TilePlan(mx::Stream stream, int num_experts, int block_m)
    : CpuPrimitive(stream, kOp), num_experts_(num_experts), block_m_(block_m) {}

std::function<void()> TilePlan::task(const Arrays& inputs, Arrays& outputs, Arrays&) {
  const mx::array& ids = inputs[0];
  auto data = [&](int i) { return outputs[i].data<int32_t>(); };
  return [ids = indices_of(kOp, "ids", ids, ids.shape()), rows = int64_t(ids.size()), tiles = int64_t(outputs[0].size()),
          experts = num_experts_, block_m = block_m_, plan = Plan{data(0), data(1), data(2), data(3), data(4), data(5)}] {
    build(ids, rows, tiles, experts, block_m, plan);
  };
}

Shapes TilePlan::output_shapes(const Arrays& inputs) {
  constexpr size_t most = std::numeric_limits<int32_t>::max();
  const size_t rows = inputs[0].size();
  const size_t tiles = ceil_div(rows, block_m_) + num_experts_;
  if (rows > most || tiles > most)
    fail(kOp, rows, " rows in ", tiles, " tiles, but a plan counts with int32; split the rows");
  const int r = static_cast<int>(rows), t = static_cast<int>(tiles);
  return {{t}, {t}, {t}, {r}, {r}, {1}};
}

bool TilePlan::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const TilePlan&>(other);
  return num_experts_ == o.num_experts_ && block_m_ == o.block_m_;
}

Arrays tile_plan(const mx::array& ids, int num_experts, int block_m, mx::StreamOrDevice where) {
  integer_of(kOp, "ids", ids.dtype());
  if (num_experts < 0) fail(kOp, "num_experts = ", num_experts, ", but must be 0 or more");
  if (block_m < 1) fail(kOp, "block_m = ", block_m, ", but must be 1 or more; 16, 32 and 64 are usual");
  auto primitive = std::make_shared<TilePlan>(cpu_stream(kOp, where), num_experts, block_m);
  auto shapes = primitive->output_shapes({ids});
  return mx::array::make_arrays(std::move(shapes), std::vector<mx::Dtype>(6, mx::int32), primitive, {ids});
}

}  // namespace mlx_tensorops::cpu
