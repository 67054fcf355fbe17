// The graph node: n inputs, n outputs, and the VariantSet that knows the rest. It stores no size, so
// a replayed graph is right for whatever shapes it is replayed with.
#pragma once

#include <memory>

#include "host_launcher.h"
#include "mlx/primitives.h"
#include "variant_set.h"

namespace mlx_tensorops {

class KernelPrimitive : public mlx::core::Primitive {
 public:
  KernelPrimitive(mlx::core::Stream stream, std::shared_ptr<const VariantSet> variants,
                  std::shared_ptr<HostLauncher> launcher);

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override;
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
             const Arrays& outputs) override;
  std::vector<mlx::core::Shape> output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mlx::core::Primitive& other) const override;
  const char* name() const override { return variants_->op().c_str(); }

 private:
  std::shared_ptr<const VariantSet> variants_;
  std::shared_ptr<HostLauncher> launcher_;  // null: the node runs on a GPU
};

// Adds a node to the graph. Evaluates nothing.
Arrays launch(std::shared_ptr<const VariantSet> variants, Arrays inputs,
              std::shared_ptr<HostLauncher> launcher, mlx::core::Stream stream);

}  // namespace mlx_tensorops
