#include "kernel_primitive.h"

#include <stdexcept>

#include "encoder.h"
#include "host_encoder.h"
#ifdef _METAL_
#include "metal_encoder.h"
#endif

namespace mlx_tensorops {

KernelPrimitive::KernelPrimitive(mlx::core::Stream stream, std::shared_ptr<const VariantSet> variants,
                                 std::shared_ptr<HostLauncher> launcher)
    : Primitive(stream), variants_(std::move(variants)), launcher_(std::move(launcher)) {}

void KernelPrimitive::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  if (!launcher_) {
    throw std::runtime_error(
        "[" + variants_->op() + "] is a Metal kernel and was placed on a CPU stream; use a GPU "
        "stream, or mlx_tensorops.hostmetal.active() to emulate it");
  }
  HostEncoder encoder(*variants_, *launcher_, stream());
  encode(*variants_, inputs, outputs, encoder);
}

void KernelPrimitive::eval_gpu(const Arrays& inputs, Arrays& outputs) {
#ifdef _METAL_
  MetalEncoder encoder(*variants_, stream());
  encode(*variants_, inputs, outputs, encoder);
#else
  (void)inputs;
  (void)outputs;
  throw std::runtime_error(
      "[" + variants_->op() + "] is a Metal kernel and this build of mlx_tensorops has no Metal; use "
      "engine=\"mlx\"");
#endif
}

Arrays KernelPrimitive::vjp(const Arrays& primals, const Arrays& cotangents,
                            const std::vector<int>& argnums, const Arrays&) {
  if (!variants_->vjp()) {
    throw std::invalid_argument(
        "[" + variants_->op() + "] has no gradient; use engine=\"mlx\" where a gradient is needed");
  }
  return variants_->vjp()(primals, cotangents, argnums);
}

std::vector<mlx::core::Shape> KernelPrimitive::output_shapes(const Arrays& inputs) {
  variants_->check(inputs);
  return variants_->output_shapes(inputs);
}

bool KernelPrimitive::is_equivalent(const mlx::core::Primitive& other) const {
  const auto* that = dynamic_cast<const KernelPrimitive*>(&other);
  return that && variants_ == that->variants_ && launcher_ == that->launcher_;
}

Arrays launch(std::shared_ptr<const VariantSet> variants, Arrays inputs,
              std::shared_ptr<HostLauncher> launcher, mlx::core::Stream stream) {
  if (launcher && stream.device != mlx::core::Device::cpu) {
    throw std::invalid_argument(
        "[" + variants->op() + "] the emulator runs on CPU streams and the stream is a GPU's; pass "
        "stream=mx.cpu");
  }
  variants->check(inputs);
  auto shapes = variants->output_shapes(inputs);
  const auto& outputs = variants->outputs();
  auto primitive = std::make_shared<KernelPrimitive>(stream, variants, std::move(launcher));
  if (outputs.size() == 1) {
    return {mlx::core::array(std::move(shapes[0]), outputs[0].dtype, std::move(primitive),
                             std::move(inputs))};
  }
  std::vector<mlx::core::Dtype> dtypes;
  for (const auto& output : outputs) {
    dtypes.push_back(output.dtype);
  }
  return mlx::core::array::make_arrays(std::move(shapes), dtypes, std::move(primitive), inputs);
}

}  // namespace mlx_tensorops
