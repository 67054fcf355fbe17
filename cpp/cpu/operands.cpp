#include "operands.h"

#include <algorithm>
#include <iterator>

namespace mlx_tensorops::cpu {

namespace mx = mlx::core;

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

Matrix addend_of(const char* op, const mx::array& x, const mx::Shape& result) {
  Matrix m{x.data<char>(), type_of(op, "an input", x.dtype()), 0, 0};
  const int n = static_cast<int>(x.ndim());
  if (n >= 1 && x.shape(-1) == result.end()[-1]) m.column = x.strides(-1);
  if (n >= 2 && x.shape(-2) == result.end()[-2]) m.row = x.strides(-2);
  return m;
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

}  // namespace mlx_tensorops::cpu
