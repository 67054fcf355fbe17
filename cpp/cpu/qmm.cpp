#include "qmm.h"

#include <algorithm>

#include "config.h"
#include "gradient.h"
#include "mlx/ops.h"
#include "operands.h"
#include "quant_gemm.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

constexpr const char* kOp = "cpu_qmm";

using Options = QuantizedMatmul::Options;

// The inputs of a node by their names.
struct Operands {
  mx::array x, w, scales;
  std::optional<mx::array> biases, global_scale, bias, residual;

  Arrays list() const {
    Arrays all{x, w, scales};
    for (auto* given : {&biases, &global_scale, &bias, &residual})
      if (*given) all.push_back(**given);
    return all;
  }
};

// Positions of the optional inputs, or -1.
struct Positions {
  int biases, global_scale, bias, residual;

  explicit Positions(const Options& o) {
    int next = 3;
    auto take = [&](bool given) { return given ? next++ : -1; };
    biases = take(o.biases);
    global_scale = take(o.global_scale);
    bias = take(o.bias);
    residual = take(o.residual);
  }
};

Operands named(const Arrays& inputs, const Options& o) {
  const Positions at(o);
  auto optional = [&](int i) { return i < 0 ? std::nullopt : std::optional(inputs[i]); };
  return {inputs[0], inputs[1], inputs[2], optional(at.biases), optional(at.global_scale), optional(at.bias), optional(at.residual)};
}

GlobalScale scale_of(const Operands& in, const Options& o) {
  return in.global_scale ? GlobalScale({*in.global_scale, o.divisor}) : std::nullopt;
}

mx::Shape result_shape(const Operands& in, const WeightFormat* format, bool transpose) {
  const WeightSizes sizes = weight_sizes(kOp, format, transpose, in.w, in.scales, in.biases);
  if (in.x.ndim() < 2) fail(kOp, "x is ", in.x.shape(), ", but needs two dimensions or more; add one with mx.expand_dims");
  if (in.x.shape(-1) != sizes.k)
    fail(kOp, "x is ", in.x.shape(), ", but the weights are ", sizes.k, " by ", sizes.n, ": the last dimension of x must be ", sizes.k,
         "; is transpose right?");
  mx::Shape shape = mx::broadcast_shapes(leading(in.x, 2), sizes.batch);
  if (in.global_scale && in.global_scale->size() != 1) {
    const mx::Shape& own = in.global_scale->shape();
    if (own.size() > shape.size() || mx::broadcast_shapes(own, shape) != shape)
      fail(kOp, "global_scale is ", own, ", but must have one element, or broadcast to the batch ", shape);
  }
  shape.push_back(in.x.shape(-2));
  shape.push_back(static_cast<int>(sizes.n));
  if (in.bias) check_addend(kOp, "bias", *in.bias, shape);
  if (in.residual) check_addend(kOp, "residual", *in.residual, shape);
  return shape;
}

QuantGemm describe(const Operands& in, mx::array& out, const Options& o, mx::Stream stream, Arrays& kept) {
  QuantGemm q;
  const mx::Shape batch = leading(out, 2);
  q.weights = weight_batch(o.format.get(), o.transpose, in.w, in.scales, in.biases, batch, stream, kept);
  q.gemm = gemm_of(kOp, in.x, out, in.bias, o.activation, in.residual);
  Gemm& g = q.gemm;
  auto varies = [&](const mx::array& x, int trailing) {
    const int own = static_cast<int>(x.ndim()) - trailing;
    for (int i = 0; i < own; i++)
      if (x.shape(i) != 1 && x.strides(i) != 0) g.b_batch[g.batch.size() - own + i] = 1;
  };
  varies(in.w, 2);
  varies(in.scales, 2);
  if (in.biases) varies(*in.biases, 2);
  if (in.global_scale) {
    const mx::array& scale = *in.global_scale;
    q.global_scale = scale.data<float>();
    q.divisor = o.divisor;
    if (scale.size() != 1) {
      q.global_scales = axes_of(scale, static_cast<int>(scale.ndim()), batch);
      varies(scale, 0);
    }
  }
  const int64_t before = count(batch);
  fold_batches_into_rows(g);
  int64_t after = 1;
  for (int64_t size : g.batch) after *= size;
  q.folded = after ? before / after : 1;
  return q;
}

}  // namespace

QuantizedMatmul::QuantizedMatmul(mx::Stream stream, Options options) : CpuPrimitive(stream, kOp), options_(std::move(options)) {}

std::function<void()> QuantizedMatmul::task(const Arrays& inputs, Arrays& outputs, Arrays& kept) {
  return [q = describe(named(inputs, options_), outputs[0], options_, stream(), kept), format = options_.format] {
    quant_gemm(q, settings());
  };
}

Shapes QuantizedMatmul::output_shapes(const Arrays& inputs) {
  return {result_shape(named(inputs, options_), options_.format.get(), options_.transpose)};
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  auto& a = options_;
  auto& b = static_cast<const QuantizedMatmul&>(other).options_;
  return a.format == b.format && a.transpose == b.transpose && a.out_type == b.out_type && a.biases == b.biases &&
         a.global_scale == b.global_scale && a.divisor == b.divisor && a.bias == b.bias && a.activation == b.activation &&
         a.residual == b.residual;
}

Arrays QuantizedMatmul::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  const Options& o = options_;
  const Operands in = named(primals, o);
  const Positions at(o);
  const GlobalScale scale = scale_of(in, o);
  const mx::Stream s = stream();
  auto product = [&](const mx::array& x, bool transpose, mx::Dtype type, const std::optional<mx::array>& bias) {
    return quantized_matmul(x, in.w, in.scales, in.biases, o.format, transpose, type, scale, bias, Activation::none, std::nullopt, s);
  };
  mx::array inner = cotangents[0];
  if (o.activation != Activation::none) inner = pull_back(o.activation, product(in.x, o.transpose, mx::float32, in.bias), inner, s);
  Arrays result;
  for (int argnum : argnums) {
    if (argnum == 0) {
      // Summed over the batch in f32, where x was broadcast.
      const bool whole = leading(in.x, 2) == leading(inner, 2);
      result.push_back(sum_to(product(inner, !o.transpose, whole ? in.x.dtype() : mx::float32, std::nullopt), in.x.shape(), in.x.dtype(), s));
    } else if (argnum == at.bias) {
      result.push_back(sum_to(inner, in.bias->shape(), in.bias->dtype(), s));
    } else if (argnum == at.residual) {
      result.push_back(sum_to(cotangents[0], in.residual->shape(), in.residual->dtype(), s));
    } else {
      fail(kOp, "there is no gradient with respect to packed weights, their scales and biases, or the global scale; nearest: with respect "
                "to x, bias and residual; instead: engine=\"mlx\" has those to scales, biases and global scale");
    }
  }
  return result;
}

Arrays QuantizedMatmul::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  const Options& o = options_;
  const Operands in = named(primals, o);
  const Positions at(o);
  const GlobalScale scale = scale_of(in, o);
  const mx::Stream s = stream();
  auto product = [&](const mx::array& x, const std::optional<mx::array>& bias) {
    return quantized_matmul(x, in.w, in.scales, in.biases, o.format, o.transpose, mx::float32, scale, bias, Activation::none, std::nullopt, s);
  };
  mx::Shape shape = result_shape(in, o.format.get(), o.transpose);
  mx::array inner = mx::zeros(shape, mx::float32, s);
  std::optional<mx::array> along_residual;
  for (size_t i = 0; i < argnums.size(); i++) {
    if (argnums[i] == 0) inner = mx::add(inner, product(tangents[i], std::nullopt), s);
    else if (argnums[i] == at.bias) inner = mx::add(inner, mx::astype(tangents[i], mx::float32, s), s);
    else if (argnums[i] == at.residual) along_residual = mx::astype(tangents[i], mx::float32, s);
    else fail(kOp, "there is no tangent along packed weights, their scales and biases, or the global scale; nearest: along x, bias and residual");
  }
  if (o.activation != Activation::none) inner = push_forward(o.activation, product(in.x, in.bias), inner, s);
  if (along_residual) inner = mx::add(inner, *along_residual, s);
  return {mx::astype(inner, o.out_type, s)};
}

ArraysAndAxes QuantizedMatmul::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  const Positions at(options_);
  const mx::Stream s = stream();
  // Rank of an input as it was written, and of the result.
  auto rank = [&](int i) { return static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0); };
  int result = std::max({rank(0), rank(1), rank(2)});
  if (at.biases >= 0) result = std::max(result, rank(at.biases));
  Arrays moved = inputs;
  int size = 1;
  bool batched = false;  // whether the product itself has the new axis
  for (int i = 0; i < static_cast<int>(inputs.size()); i++) {
    if (axes[i] < 0) continue;
    size = inputs[i].shape(axes[i]);
    batched |= i < 3 || i == at.biases;
    if (i != at.global_scale) moved[i] = lead(inputs[i], axes[i], result, s);
    // It has the batch's axes only.
    else if (static_cast<int>(inputs[i].size()) == size) moved[i] = lead(mx::reshape(inputs[i], {size}, s), 0, result - 2, s);
    else moved[i] = lead(inputs[i], axes[i], result - 2, s);
  }
  // Only an addend or the global scale is mapped: the product must have the axis, too.
  if (!batched) moved[0] = lead_broadcast(moved[0], size, result, s);
  const Operands in = named(moved, options_);
  const GlobalScale scale = scale_of(in, options_);
  return {{quantized_matmul(in.x, in.w, in.scales, in.biases, options_.format, options_.transpose, options_.out_type, scale, in.bias,
                            options_.activation, in.residual, s)},
          {0}};
}

mx::array quantized_matmul(const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
                           std::shared_ptr<const WeightFormat> format, bool transpose, mx::Dtype out_type, const GlobalScale& global_scale,
                           const std::optional<mx::array>& bias, Activation activation, const std::optional<mx::array>& residual,
                           mx::StreamOrDevice where) {
  type_of(kOp, "x", x.dtype());
  type_of(kOp, "out_dtype", out_type);
  if (bias) type_of(kOp, "bias", bias->dtype());
  if (residual) type_of(kOp, "residual", residual->dtype());
  Operands in{x, w, scales, biases, std::nullopt, bias, residual};
  if (global_scale) {
    if (global_scale->first.dtype() != mx::float32)
      fail(kOp, "global_scale is ", global_scale->first.dtype(), ", but must be float32");
    in.global_scale = global_scale->first;
  }
  mx::Shape shape = result_shape(in, format.get(), transpose);
  auto primitive = std::make_shared<QuantizedMatmul>(
      cpu_stream(kOp, where),
      Options{std::move(format), transpose, out_type, biases.has_value(), global_scale.has_value(),
              global_scale ? global_scale->second : 1.0f, bias.has_value(), activation, residual.has_value()});
  return mx::array(std::move(shape), out_type, std::move(primitive), in.list());
}

}  // namespace mlx_tensorops::cpu
