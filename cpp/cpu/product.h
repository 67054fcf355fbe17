// Products with everything decided but their arrays and the stream: what a warm call of Python finds again.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "gather_ops.h"
#include "qmm.h"

namespace mlx_tensorops::cpu {

// An argument: an array or None, or several of them. None, and what is beyond the end, is null.
struct Argument {
  const mlx::core::array* const* items;
  std::size_t count;

  const mlx::core::array* operator[](std::size_t i) const { return i < count ? items[i] : nullptr; }
};

class Prepared {
 public:
  virtual ~Prepared() = default;
  // Adds the nodes. Empty where the arrays do not fit, or need what only the full call does: that call tells the lesson.
  virtual std::vector<mlx::core::array> operator()(const Argument* arguments, std::size_t count, mlx::core::Stream stream) const = 0;
};

// x, w, scales, biases, global scale / divisor in one of two places, bias, residual.
class QuantizedProduct : public Prepared {
 public:
  QuantizedProduct(std::shared_ptr<const WeightFormat> format, bool transpose, mlx::core::Dtype out_type, float divisor, Activation activation);
  std::vector<mlx::core::array> operator()(const Argument* arguments, std::size_t count, mlx::core::Stream stream) const override;

 private:
  QuantizedMatmul::Options options_;  // without what depends on the arrays
};

// x, each projection's weights (w, or w, scales and perhaps biases), lhs, rhs, and one for each projection: global scale / divisor in one of
// two places, bias.
class ExpertProduct : public Prepared {
 public:
  ExpertProduct(const char* op, int projections, ExpertOptions options, float divisor);
  std::vector<mlx::core::array> operator()(const Argument* arguments, std::size_t count, mlx::core::Stream stream) const override;

 private:
  const char* op_;
  int projections_;
  ExpertOptions options_;
  float divisor_;
};

// x, weights of gate, up and down, indices, scores or None.
class LayerProduct : public Prepared {
 public:
  LayerProduct(ExpertOptions gate_and_up, ExpertOptions down);
  std::vector<mlx::core::array> operator()(const Argument* arguments, std::size_t count, mlx::core::Stream stream) const override;

 private:
  ExpertOptions gate_and_up_, down_;
};

}  // namespace mlx_tensorops::cpu
