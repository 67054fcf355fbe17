#include "operands.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "mlx/ops.h"

namespace mlx_tensorops::cpu {

namespace mx = mlx::core;

namespace {

Matrix addend_of(const char* op, const mx::array& x, const mx::Shape& result) {
  Matrix m{x.data<char>(), type_of(op, "an input", x.dtype()), 0, 0};
  const int n = static_cast<int>(x.ndim());
  if (n >= 1 && x.shape(-1) == result.end()[-1]) m.column = x.strides(-1);
  if (n >= 2 && x.shape(-2) == result.end()[-2]) m.row = x.strides(-2);
  return m;
}

}  // namespace

std::vector<int64_t> batch_strides(const mx::array& x, const std::vector<int64_t>& batch) {
  std::vector<int64_t> strides(batch.size(), 0);
  const int64_t own = static_cast<int64_t>(x.ndim()) - 2;
  for (int64_t i = 0; i < own; i++)
    if (x.shape(i) != 1) strides[batch.size() - own + i] = x.strides(i);
  return strides;
}

Matrix matrix_of(const char* op, const mx::array& x) {
  return {x.data<char>(), type_of(op, "an input", x.dtype()), x.strides(-2), x.strides(-1)};
}

void check_addend(const char* op, const char* name, const mx::array& x, const mx::Shape& result) {
  if (x.ndim() > result.size() || mx::broadcast_shapes(x.shape(), result) != result)
    fail(op, name, " is ", x.shape(), ", which does not broadcast to the result ", result);
}

Gemm gemm_of(const char* op, const mx::array& a, mx::array& out, const std::optional<mx::array>& bias, Activation activation,
             const std::optional<mx::array>& residual) {
  Gemm g;
  g.m = a.shape(-2);
  g.k = a.shape(-1);
  g.n = out.shape(-1);
  g.a = matrix_of(op, a);
  g.out = out.data<char>();
  g.out_type = type_of(op, "out_dtype", out.dtype());
  g.out_row = g.n;
  g.activation = activation;
  g.batch.assign(out.shape().begin(), out.shape().end() - 2);
  g.a_batch = batch_strides(a, g.batch);
  g.b_batch = g.bias_batch = g.residual_batch = std::vector<int64_t>(g.batch.size(), 0);
  if (bias) {
    g.bias = addend_of(op, *bias, out.shape());
    g.bias_batch = batch_strides(*bias, g.batch);
  }
  if (residual) {
    g.residual = addend_of(op, *residual, out.shape());
    g.residual_batch = batch_strides(*residual, g.batch);
  }
  return g;
}

void fold_batches_into_rows(Gemm& g) {
  struct Operand {
    Matrix& matrix;
    std::vector<int64_t>& batch;
  };
  Operand operands[] = {{g.a, g.a_batch}, {g.bias, g.bias_batch}, {g.residual, g.residual_batch}};
  auto continues = [&](const Operand& o) {
    return !o.matrix.data || g.m == 1 || o.batch.back() == g.m * o.matrix.row;
  };
  while (!g.batch.empty() && g.b_batch.back() == 0 &&
         std::all_of(std::begin(operands), std::end(operands), continues)) {
    for (const Operand& o : operands) {
      if (g.m == 1) o.matrix.row = o.batch.back();
      o.batch.pop_back();
    }
    g.m *= g.batch.back();
    g.batch.pop_back();
    g.b_batch.pop_back();
  }
}

mx::array lead(const mx::array& x, int axis, int rank, mx::Stream s) {
  const mx::array moved = mx::moveaxis(x, axis, 0, s);
  std::vector<int> missing(std::max(0, rank + 1 - static_cast<int>(moved.ndim())));
  std::iota(missing.begin(), missing.end(), 1);
  return missing.empty() ? moved : mx::expand_dims(moved, missing, s);
}

mx::array lead_broadcast(const mx::array& x, int size, int rank, mx::Stream s) {
  mx::Shape shape(rank + 1, 1);
  std::copy(x.shape().begin(), x.shape().end(), shape.end() - x.ndim());
  shape[0] = size;
  return mx::broadcast_to(x, shape, s);
}

}  // namespace mlx_tensorops::cpu
