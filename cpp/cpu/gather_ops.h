// The operations over experts as nodes of MLX's graph.
#pragma once

#include <optional>
#include <vector>

#include "gather.h"
#include "mlx/utils.h"
#include "primitive.h"

namespace mlx_tensorops::cpu {

// One projection's arrays. `divisor` belongs to global_scale: sums are multiplied by global_scale / divisor.
struct ExpertArrays {
  mlx::core::array w;
  std::optional<mlx::core::array> scales, biases;
  std::optional<mlx::core::array> bias;          // [experts, n]
  std::optional<mlx::core::array> global_scale;  // one, or one for each expert
  float divisor = 1.0f;
};

// What an operation reads. Of combine, x is [..., k, K] and scores [..., k]; of the others x is [..., M, K].
struct ExpertCall {
  mlx::core::array x;
  std::vector<ExpertArrays> projections;
  std::optional<mlx::core::array> lhs;
  mlx::core::array rhs;
  Arrays plan;  // none, or tile_expert, tile_row_start, tile_row_count, order
  std::optional<mlx::core::array> scores;
};

struct ExpertOptions {
  const WeightFormat* format;  // null: dense weights
  bool transpose;
  mlx::core::Dtype out_type;
  Activation activation = Activation::none;  // of a single projection
  GateFunction gate;                         // of two

  bool operator==(const ExpertOptions&) const = default;
};

// What an input of the node is: the call, flattened.
enum class Role { x, w, scales, biases, bias, global_scale, lhs, rhs, plan, scores };
constexpr int kRoles = 10;
struct Input {
  Role role;
  int projection = 0;
  float divisor = 1.0f;

  bool operator==(const Input&) const = default;
};

class ExpertOp : public CpuPrimitive {
 public:
  ExpertOp(mlx::core::Stream stream, const char* op, ExpertOptions options, std::vector<Input> layout);

  bool is_equivalent(const mlx::core::Primitive& other) const override;

 protected:
  ExpertCall unpack(const Arrays& inputs) const;

  ExpertOptions options_;
  std::vector<Input> layout_;
};

// gather_mm (one projection) and gather_gateup (two).
class GatherProducts : public ExpertOp {
 public:
  using ExpertOp::ExpertOp;

  // With respect to x and bias; along x; over x and the indices.
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  ArraysAndAxes vmap(const Arrays& inputs, const std::vector<int>& axes) override;
  Shapes output_shapes(const Arrays& inputs) override;
  const char* name() const override { return "CpuGatherProducts"; }

 protected:
  std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) override;
};

class GatherCombine : public ExpertOp {
 public:
  using ExpertOp::ExpertOp;

  // With respect to x, bias and scores; along x and scores; over x, the indices and scores.
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  ArraysAndAxes vmap(const Arrays& inputs, const std::vector<int>& axes) override;
  Shapes output_shapes(const Arrays& inputs) override;
  const char* name() const override { return "CpuGatherCombine"; }

 protected:
  std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) override;
};

// One result, or one for each projection where no gate joins them: [broadcast of lhs and rhs, M, N]. Without lhs, the batch of x takes
// its place. A row with an id out of range is zero.
Arrays gather_products(const char* op, const ExpertCall&, const ExpertOptions&, mlx::core::StreamOrDevice stream);

// [..., N]: the sum over k of scores * products, in the order of k. An id out of range contributes nothing.
mlx::core::array gather_combine(const char* op, const ExpertCall&, const ExpertOptions&, mlx::core::StreamOrDevice stream);

// Throws: the operation has no gradient, no tangent or no mapping in that input.
[[noreturn]] void fail_role(const char* op, const char* what, Role role);

}  // namespace mlx_tensorops::cpu
