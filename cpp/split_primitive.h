// The first axis of an array as several, whose sizes are rules over other arrays' shapes. MLX's own Unflatten and Reshape
// store the sizes of the graph that was traced; a replayed shapeless graph would give those, whatever its inputs are.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mlx/primitives.h"
#include "variant_set.h"

namespace mlx_tensorops {

// Immutable, shared by graph nodes. Rules and checks read shapes only; input 0 is the array that is split.
class Split {
 public:
  Split(std::string op, int inputs, std::vector<Rule> sizes, std::vector<Check> checks);

  const std::string& op() const { return op_; }
  int axes() const { return static_cast<int>(sizes_.size()); }
  // Throws std::invalid_argument where a check fails or the sizes do not multiply to the first axis.
  mlx::core::Shape shape(const Arrays& inputs) const;

 private:
  std::string op_;
  int inputs_;
  std::vector<Rule> sizes_;
  std::vector<Check> checks_;
};

class SplitPrimitive : public mlx::core::Primitive {
 public:
  SplitPrimitive(mlx::core::Stream stream, std::shared_ptr<const Split> split);

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override;
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
             const Arrays& outputs) override;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  std::vector<mlx::core::Shape> output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return "TensorOpsSplit"; }

 private:
  std::shared_ptr<const Split> split_;
};

// Adds a node to the graph: a view, never a copy.
mlx::core::array split(std::shared_ptr<const Split> split, Arrays inputs, mlx::core::Stream stream);

}  // namespace mlx_tensorops
