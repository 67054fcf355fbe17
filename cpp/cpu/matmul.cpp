#include "matmul.h"

#include <algorithm>

#include "config.h"
#include "gradient.h"
#include "mlx/ops.h"
#include "operands.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"", Activation::none},
    {"relu", Activation::relu},
    {"gelu_tanh", Activation::gelu_tanh},
    {"gelu_erf", Activation::gelu_erf},
    {"silu", Activation::silu},
};

constexpr const char* kOp = "cpu_matmul";

mx::Shape result_shape(const mx::array& a, const mx::array& b) {
  if (a.ndim() < 2 || b.ndim() < 2)
    fail(kOp, "a is ", a.shape(), " and b is ", b.shape(),
         ", but both need two dimensions or more; add one with mx.expand_dims");
  if (a.shape(-1) != b.shape(-2))
    fail(kOp, "a is ", a.shape(), " and b is ", b.shape(),
         ", but the last dimension of a must equal the second-last of b; is one of them transposed?");
  mx::Shape shape = mx::broadcast_shapes(leading(a, 2), leading(b, 2));
  shape.push_back(a.shape(-2));
  shape.push_back(b.shape(-1));
  return shape;
}

Gemm describe(const Arrays& inputs, mx::array& out, const Matmul::Options& options) {
  std::optional<mx::array> bias, residual;
  if (options.bias) bias = inputs[2];
  if (options.residual) residual = inputs.back();
  Gemm g = gemm_of(kOp, inputs[0], out, bias, options.activation, residual);
  g.b = matrix_of(kOp, inputs[1]);
  g.b_batch = batch_strides(inputs[1], g.batch);
  fold_batches_into_rows(g);
  return g;
}

}  // namespace

Activation activation_of(const std::string& name) {
  std::string names;
  for (auto& [known, activation] : kActivations) {
    if (name == known) return activation;
    if (*known) names += (names.empty() ? "" : ", ") + std::string(known);
  }
  fail(kOp, "activation = '", name, "' is not known; it may be None, ", names);
}

Matmul::Matmul(mx::Stream stream, Options options) : CpuPrimitive(stream, kOp), options_(options) {}

std::function<void()> Matmul::task(const Arrays& inputs, Arrays& outputs, Arrays&) {
  return [g = describe(inputs, outputs[0], options_)] { gemm(g, settings()); };
}

Shapes Matmul::output_shapes(const Arrays& inputs) {
  mx::Shape shape = result_shape(inputs[0], inputs[1]);
  if (options_.bias) check_addend(kOp, "bias", inputs[2], shape);
  if (options_.residual) check_addend(kOp, "residual", inputs.back(), shape);
  return {shape};
}

bool Matmul::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const Matmul&>(other).options_;
  return options_.out_type == o.out_type && options_.activation == o.activation &&
         options_.bias == o.bias && options_.residual == o.residual;
}

Arrays Matmul::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  std::optional<mx::array> bias, residual;
  if (options_.bias) bias = primals[2];
  if (options_.residual) residual = primals.back();
  return gradients(primals[0], primals[1], bias, residual, options_.activation, cotangents[0],
                   argnums, stream());
}

Arrays Matmul::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  std::vector<std::optional<mx::array>> by_input(primals.size());
  for (size_t i = 0; i < argnums.size(); i++) by_input[argnums[i]] = tangents[i];
  std::optional<mx::array> bias, bias_tangent, residual_tangent;
  if (options_.bias) bias = primals[2], bias_tangent = by_input[2];
  if (options_.residual) residual_tangent = by_input.back();
  return {tangent(primals[0], primals[1], bias, by_input[0], by_input[1], bias_tangent,
                  residual_tangent, options_.activation, options_.out_type, stream())};
}

ArraysAndAxes Matmul::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  auto rank = [&](size_t i) { return static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0); };
  const int result = std::max(rank(0), rank(1));
  Arrays moved = inputs;
  int size = 1;
  for (size_t i = 0; i < inputs.size(); i++) {
    if (axes[i] < 0) continue;
    size = inputs[i].shape(axes[i]);
    moved[i] = lead(inputs[i], axes[i], result, stream());
  }
  // Only a bias or a residual is mapped: the product must have the axis, too.
  if (axes[0] < 0 && axes[1] < 0) moved[0] = lead_broadcast(moved[0], size, result, stream());
  std::optional<mx::array> bias, residual;
  if (options_.bias) bias = moved[2];
  if (options_.residual) residual = moved.back();
  return {{matmul(moved[0], moved[1], options_.out_type, bias, options_.activation, residual, stream())},
          {0}};
}

mx::array matmul(const mx::array& a, const mx::array& b, mx::Dtype out_type,
                 const std::optional<mx::array>& bias, Activation activation,
                 const std::optional<mx::array>& residual, mx::StreamOrDevice where) {
  type_of(kOp, "a", a.dtype());
  type_of(kOp, "b", b.dtype());
  type_of(kOp, "out_dtype", out_type);
  mx::Shape shape = result_shape(a, b);
  Arrays inputs{a, b};
  if (bias) {
    type_of(kOp, "bias", bias->dtype());
    check_addend(kOp, "bias", *bias, shape);
    inputs.push_back(*bias);
  }
  if (residual) {
    type_of(kOp, "residual", residual->dtype());
    check_addend(kOp, "residual", *residual, shape);
    inputs.push_back(*residual);
  }
  mx::Stream stream = cpu_stream(kOp, where);
  auto primitive = std::make_shared<Matmul>(
      stream, Matmul::Options{out_type, activation, bias.has_value(), residual.has_value()});
  return mx::array(std::move(shape), out_type, std::move(primitive), std::move(inputs));
}

}  // namespace mlx_tensorops::cpu
