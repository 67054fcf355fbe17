#include "gradient.h"

#include <cmath>

#include "matmul.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

namespace mlx_tensorops::cpu {

namespace mx = mlx::core;

mx::array apply(Activation activation, const mx::array& x, mx::Stream s) {
  auto scalar = [](double value) { return mx::array(static_cast<float>(value)); };
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return mx::maximum(x, scalar(0), s);
    case Activation::silu: return mx::multiply(x, mx::sigmoid(x, s), s);
    case Activation::gelu_tanh: {
      mx::array cubic = mx::multiply(mx::multiply(x, x, s), x, s);
      mx::array u = mx::add(x, mx::multiply(scalar(0.044715), cubic, s), s);
      u = mx::multiply(scalar(2 * std::sqrt(2 / M_PI)), u, s);
      return mx::multiply(x, mx::sigmoid(u, s), s);
    }
    case Activation::gelu_erf: {
      mx::array u = mx::erf(mx::multiply(x, scalar(M_SQRT1_2), s), s);
      return mx::multiply(mx::multiply(scalar(0.5), x, s), mx::add(scalar(1), u, s), s);
    }
  }
  return x;
}

namespace {

mx::array transpose(const mx::array& x, mx::Stream s) {
  return mx::swapaxes(x, -1, -2, s);
}

mx::array rows(const mx::array& x, mx::Stream s) {
  return x.ndim() == 2 ? x : mx::flatten(x, 0, -2, s);
}

}  // namespace

mx::array sum_to(mx::array x, const mx::Shape& shape, mx::Dtype type, mx::Stream s) {
  std::vector<int> axes;
  const int extra = static_cast<int>(x.ndim() - shape.size());
  for (int i = 0; i < static_cast<int>(x.ndim()); i++)
    if (i < extra || (shape[i - extra] == 1 && x.shape(i) != 1)) axes.push_back(i);
  if (!axes.empty()) {
    x = mx::sum(mx::astype(x, mx::float32, s), axes, true, s);
    if (extra > 0) {
      std::vector<int> leading(axes.begin(), axes.begin() + extra);
      x = mx::squeeze(x, leading, s);
    }
  }
  return mx::astype(x, type, s);
}

mx::array pull_back(Activation activation, const mx::array& before, const mx::array& cotangent, mx::Stream s) {
  auto f = [&](const mx::array& x) { return apply(activation, x, s); };
  return mx::vjp(f, before, mx::astype(cotangent, mx::float32, s)).second;
}

mx::array push_forward(Activation activation, const mx::array& before, const mx::array& tangent, mx::Stream s) {
  auto f = [&](const mx::array& x) { return apply(activation, x, s); };
  return mx::jvp(f, before, tangent).second;
}

std::vector<mx::array> gradients(const mx::array& a, const mx::array& b,
                                 const std::optional<mx::array>& bias,
                                 const std::optional<mx::array>& residual, Activation activation,
                                 const mx::array& cotangent, const std::vector<int>& argnums,
                                 mx::Stream s) {
  mx::array inner = cotangent;
  if (activation != Activation::none) {
    mx::array before = matmul(a, b, mx::float32, bias, Activation::none, std::nullopt, s);
    inner = pull_back(activation, before, cotangent, s);
  }
  // A product that is summed afterwards stays in f32 until then.
  auto product = [&](const mx::array& x, const mx::array& y, const mx::array& like) {
    bool whole = x.ndim() == like.ndim() && y.ndim() == like.ndim();
    for (size_t i = 0; whole && i + 2 < like.ndim(); i++)
      whole = x.shape(i) == like.shape(i) && y.shape(i) == like.shape(i);
    mx::array grad =
        matmul(x, y, whole ? like.dtype() : mx::float32, std::nullopt, Activation::none, std::nullopt, s);
    return sum_to(grad, like.shape(), like.dtype(), s);
  };
  std::vector<mx::array> result;
  for (int argnum : argnums) {
    if (argnum == 0) {
      result.push_back(product(inner, transpose(b, s), a));
    } else if (argnum == 1) {
      // One weight for a whole batch: one tall product instead of one per batch element.
      bool shared = b.ndim() == 2 && a.ndim() > 2;
      mx::array left = shared ? rows(a, s) : a;
      result.push_back(product(transpose(left, s), shared ? rows(inner, s) : inner, b));
    } else if (argnum == 2 && bias) {
      result.push_back(sum_to(inner, bias->shape(), bias->dtype(), s));
    } else {
      result.push_back(sum_to(cotangent, residual->shape(), residual->dtype(), s));
    }
  }
  return result;
}

mx::array tangent(const mx::array& a, const mx::array& b, const std::optional<mx::array>& bias,
                  const std::optional<mx::array>& along_a, const std::optional<mx::array>& along_b,
                  const std::optional<mx::array>& along_bias,
                  const std::optional<mx::array>& along_residual, Activation activation,
                  mx::Dtype out_type, mx::Stream s) {
  auto product = [&](const mx::array& x, const mx::array& y) {
    return matmul(x, y, mx::float32, std::nullopt, Activation::none, std::nullopt, s);
  };
  mx::array before = matmul(a, b, mx::float32, bias, Activation::none, std::nullopt, s);
  mx::array inner = mx::zeros_like(before, s);
  if (along_a) inner = mx::add(inner, product(*along_a, b), s);
  if (along_b) inner = mx::add(inner, product(a, *along_b), s);
  if (along_bias) inner = mx::add(inner, mx::astype(*along_bias, mx::float32, s), s);
  if (activation != Activation::none) inner = push_forward(activation, before, inner, s);
  if (along_residual) inner = mx::add(inner, mx::astype(*along_residual, mx::float32, s), s);
  return mx::astype(inner, out_type, s);
}

}  // namespace mlx_tensorops::cpu
