// What the nodes of the CPU engine share: memory for the outputs, one task on the stream, and no GPU.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "mlx/primitives.h"

namespace mlx_tensorops::cpu {

using Arrays = std::vector<mlx::core::array>;
using Shapes = std::vector<mlx::core::Shape>;
using ArraysAndAxes = std::pair<Arrays, std::vector<int>>;

class CpuPrimitive : public mlx::core::Primitive {
 public:
  CpuPrimitive(mlx::core::Stream stream, const char* op) : Primitive(stream), op_(op) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) final;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) final;

 protected:
  // The work on outputs that have memory, of which not all are empty. `kept` takes what else must live until it is done.
  virtual std::function<void()> task(const Arrays& inputs, Arrays& outputs, Arrays& kept) = 0;

  const char* op_;
};

}  // namespace mlx_tensorops::cpu
