// Derivatives and mapping of the operations over experts, built from the same operations.
#include <algorithm>
#include <array>

#include "gather_ops.h"
#include "gradient.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "operands.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

constexpr const char* kNoGradient =
    "engine cpu has gradients in x, bias and scores; engine=\"mlx\" also has them in dense weights, and in scales, biases and global scale; here none in";

mx::array scalar(float value) {
  return mx::array(value);
}

mx::array zeros(const mx::Shape& shape, mx::Stream s) {
  return mx::zeros(shape, mx::float32, s);
}

mx::array f32(const mx::array& x, mx::Stream s) {
  return mx::astype(x, mx::float32, s);
}

mx::array join(const GateFunction& f, const mx::array& g, const mx::array& u, mx::Stream s) {
  switch (f.gate) {
    case Gate::none:
    case Gate::swiglu: return mx::multiply(apply(Activation::silu, g, s), u, s);
    case Gate::geglu_tanh: return mx::multiply(apply(Activation::gelu_tanh, g, s), u, s);
    case Gate::geglu_erf: return mx::multiply(apply(Activation::gelu_erf, g, s), u, s);
    case Gate::swiglu_clamped: break;
  }
  const mx::array limit = scalar(f.limit);
  const mx::array a = mx::minimum(g, limit, s), b = mx::clip(u, scalar(-f.limit), limit, s);
  const mx::array slope = mx::sigmoid(mx::multiply(scalar(f.alpha), a, s), s);
  return mx::multiply(mx::multiply(a, slope, s), mx::add(b, scalar(1), s), s);
}

// The parts of a call with one projection, without what is linear-breaking: no bias, no activation, sums in f32.
ExpertOptions linear(ExpertOptions options) {
  options.out_type = mx::float32;
  options.activation = Activation::none;
  options.gate = {};
  return options;
}

mx::array in_range(const mx::array& index, int64_t size, mx::Stream s) {
  const mx::Dtype type = index.dtype();
  const mx::array valid = mx::greater_equal(index, mx::array(0, type), s);
  if (static_cast<uint64_t>(size) > mx::iinfo(type).max) return valid;
  return mx::logical_and(valid, mx::less(index, mx::array(size, type), s), s);
}

// Rows of updates added up at their index; those with an index out of range at 0, as zeros: MLX's scatter does not check.
mx::array scattered(const mx::array& index, int64_t size, const mx::array& updates, const mx::Shape& row, mx::Stream s) {
  mx::Shape all = row;
  all.insert(all.begin(), static_cast<int>(size));
  if (size == 0) return zeros(all, s);
  const int rows = static_cast<int>(index.size());
  mx::array at = mx::reshape(index, {rows}, s);
  const mx::array valid = in_range(at, size, s);
  at = mx::where(valid, at, mx::zeros_like(at, s), s);
  mx::Shape shape = row;
  shape.insert(shape.begin(), rows);
  mx::Shape mask(shape.size(), 1);
  mask[0] = rows;
  const mx::array kept = mx::where(mx::reshape(valid, mask, s), mx::reshape(updates, shape, s), scalar(0), s);
  shape.insert(shape.begin() + 1, 1);
  return mx::scatter_add(zeros(all, s), mx::astype(at, mx::int32, s), mx::reshape(kept, shape, s), 0, s);
}

// Cotangent of x from the cotangents of the sums of each projection, all [pairs, M, N] in f32.
mx::array pull_rows(const char* op, const ExpertCall& call, const ExpertOptions& options, const Arrays& sums, mx::Stream s) {
  ExpertOptions flipped = linear(options);
  flipped.transpose = !options.transpose;
  const mx::Shape pairs = leading(sums[0], 2);
  mx::array total = scalar(0);
  for (int i = 0; i < static_cast<int>(sums.size()); i++) {
    ExpertArrays projection = call.projections[i];
    projection.bias.reset();
    const ExpertCall back{sums[i], {projection}, {}, mx::broadcast_to(call.rhs, pairs, s), call.plan, {}};
    const mx::array part = gather_products(op, back, flipped, s)[0];
    total = i == 0 ? part : mx::add(total, part, s);
  }
  if (!call.lhs) return sum_to(total, call.x.shape(), call.x.dtype(), s);
  const mx::array lhs = mx::broadcast_to(*call.lhs, pairs, s);
  const mx::array summed = scattered(lhs, count(leading(call.x, 2)), total, {call.x.shape(-2), call.x.shape(-1)}, s);
  return mx::astype(mx::reshape(summed, call.x.shape(), s), call.x.dtype(), s);
}

mx::array pull_bias(const ExpertCall& call, const ExpertArrays& p, const mx::array& sums, mx::Stream s) {
  const mx::array& bias = *p.bias;
  mx::array ids = mx::broadcast_to(call.rhs, leading(sums, 2), s), updates = mx::sum(sums, -2, false, s);
  if (call.lhs) {
    const mx::array lhs = mx::broadcast_to(*call.lhs, ids.shape(), s);
    const mx::array found = in_range(lhs, count(leading(call.x, 2)), s);
    updates = mx::where(mx::expand_dims(found, -1, s), updates, scalar(0), s);
  }
  const int n = bias.shape(-1);
  const mx::array summed = scattered(ids, bias.size() / std::max(n, 1), updates, {n}, s);
  return mx::astype(mx::reshape(summed, bias.shape(), s), bias.dtype(), s);
}

// The sums of each projection in f32, bias included, before activation and gate.
Arrays before(const char* op, const ExpertCall& call, const ExpertOptions& options, mx::Stream s) {
  return gather_products(op, call, linear(options), s);
}

// [..., k, K] as [..., k, 1, K]: each row is a matrix.
ExpertCall rows_as_matrices(ExpertCall call, mx::Stream s) {
  call.x = mx::expand_dims(call.x, -2, s);
  call.scores.reset();
  return call;
}

// Results of combine's products, [..., k, N].
mx::array pieces(const char* op, const ExpertCall& call, const ExpertOptions& options, mx::Stream s) {
  return mx::squeeze(before(op, rows_as_matrices(call, s), options, s)[0], -2, s);
}

mx::array weighted(const mx::array& scores, const mx::array& rows, mx::Stream s) {
  return mx::sum(mx::multiply(mx::expand_dims(f32(scores, s), -1, s), rows, s), -2, false, s);
}

// ---- vmap --------------------------------------------------------------------------------------

// The mapped axes of a node's inputs by their roles; -1: none.
class Mapped {
 public:
  // Throws if an input is mapped whose role is not among `allowed`.
  Mapped(const char* op, const char* what, const std::vector<Input>& layout, std::initializer_list<Role> allowed, const Arrays& inputs,
         const std::vector<int>& axes) {
    axis_.fill(-1);
    for (std::size_t i = 0; i < inputs.size(); i++) {
      if (axes[i] < 0) continue;
      const Role role = layout[i].role;
      if (std::find(allowed.begin(), allowed.end(), role) == allowed.end()) fail_role(op, what, role);
      axis_[static_cast<int>(role)] = axes[i];
      size_ = inputs[i].shape(axes[i]);
    }
  }
  int operator[](Role role) const { return axis_[static_cast<int>(role)]; }
  int size() const { return size_; }

 private:
  std::array<int, kRoles> axis_;
  int size_ = 1;
};

}  // namespace

Arrays GatherProducts::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  const mx::Stream s = stream();
  const ExpertCall call = unpack(primals);
  Arrays sums;
  for (const mx::array& c : cotangents) sums.push_back(f32(c, s));
  if (options_.activation != Activation::none) {
    sums = {pull_back(options_.activation, before(op_, call, options_, s)[0], cotangents[0], s)};
  } else if (options_.gate.gate != Gate::none) {
    auto f = [&](const Arrays& x) { return Arrays{join(options_.gate, x[0], x[1], s)}; };
    sums = mx::vjp(f, before(op_, call, options_, s), sums).second;
  }
  Arrays result;
  for (int argnum : argnums) {
    const Input& input = layout_[argnum];
    if (input.role == Role::x) result.push_back(pull_rows(op_, call, options_, sums, s));
    else if (input.role == Role::bias)
      result.push_back(pull_bias(call, call.projections[input.projection], sums[input.projection], s));
    else fail_role(op_, kNoGradient, input.role);
  }
  return result;
}

Arrays GatherProducts::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  const mx::Stream s = stream();
  const ExpertCall call = unpack(primals);
  for (int argnum : argnums)
    if (layout_[argnum].role != Role::x) fail_role(op_, "there is a tangent along x, but none along", layout_[argnum].role);
  ExpertCall along = call;
  along.x = tangents[0];
  for (ExpertArrays& p : along.projections) p.bias.reset();
  Arrays moved = before(op_, along, options_, s);
  if (options_.activation != Activation::none) {
    moved = {push_forward(options_.activation, before(op_, call, options_, s)[0], moved[0], s)};
  } else if (options_.gate.gate != Gate::none) {
    auto f = [&](const Arrays& x) { return Arrays{join(options_.gate, x[0], x[1], s)}; };
    moved = mx::jvp(f, before(op_, call, options_, s), moved).second;
  }
  for (mx::array& x : moved) x = mx::astype(x, options_.out_type, s);
  return moved;
}

ArraysAndAxes GatherProducts::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  const mx::Stream s = stream();
  ExpertCall call = unpack(inputs);
  const Mapped mapped(op_, "vmap maps x and the indices, but not", layout_, {Role::x, Role::lhs, Role::rhs}, inputs, axes);
  const int x_axis = mapped[Role::x], lhs_axis = mapped[Role::lhs], rhs_axis = mapped[Role::rhs], size = mapped.size();
  if (!call.plan.empty()) fail(op_, "vmap would make other rows than the plan has; leave the plan out");
  auto rank = [](const mx::array& x, int axis) { return static_cast<int>(x.ndim()) - (axis >= 0); };
  if (call.lhs) {
    const int pairs = std::max(rank(*call.lhs, lhs_axis), rank(call.rhs, rhs_axis));
    if (x_axis >= 0) {  // each mapped part of x has its own matrices: count them through
      const mx::array x = mx::moveaxis(call.x, x_axis, 0, s);
      const int64_t matrices = count(leading(x, 2)) / std::max(size, 1);
      const mx::array each = lhs_axis >= 0 ? *call.lhs : mx::expand_dims(*call.lhs, 0, s);
      const mx::array lhs = mx::astype(lead(each, std::max(lhs_axis, 0), pairs, s), mx::int64, s);
      mx::Shape parts(lhs.ndim(), 1);
      parts[0] = size;
      const mx::array first = mx::multiply(mx::reshape(mx::arange(0, size, 1, mx::int64, s), parts, s), mx::array(matrices, mx::int64), s);
      call.lhs = mx::where(in_range(lhs, matrices, s), mx::add(lhs, first, s), mx::array(int64_t(-1), mx::int64), s);
      call.x = x;
    } else if (lhs_axis >= 0) {
      call.lhs = lead(*call.lhs, lhs_axis, pairs, s);
    }
    if (rhs_axis >= 0) call.rhs = lead(call.rhs, rhs_axis, pairs, s);
  } else {
    const int pairs = std::max(rank(call.x, x_axis) - 2, rank(call.rhs, rhs_axis));
    if (x_axis >= 0) call.x = lead(call.x, x_axis, pairs + 2, s);
    if (rhs_axis >= 0) call.rhs = lead(call.rhs, rhs_axis, pairs, s);
  }
  Arrays results = gather_products(op_, call, options_, s);
  std::vector<int> out_axes(results.size(), 0);
  return {std::move(results), std::move(out_axes)};
}

Arrays GatherCombine::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  const mx::Stream s = stream();
  const ExpertCall call = unpack(primals);
  const mx::array cotangent = mx::expand_dims(f32(cotangents[0], s), -2, s);  // [..., 1, N]
  const mx::array sums = mx::expand_dims(mx::multiply(mx::expand_dims(f32(*call.scores, s), -1, s), cotangent, s), -2, s);
  Arrays result;
  for (int argnum : argnums) {
    const Input& input = layout_[argnum];
    if (input.role == Role::x) {
      const mx::array rows = pull_rows(op_, rows_as_matrices(call, s), options_, {sums}, s);
      result.push_back(mx::squeeze(rows, -2, s));
    } else if (input.role == Role::bias) {
      result.push_back(pull_bias(call, call.projections[0], sums, s));
    } else if (input.role == Role::scores) {
      const mx::array score = mx::sum(mx::multiply(pieces(op_, call, options_, s), cotangent, s), -1, false, s);
      result.push_back(mx::astype(score, call.scores->dtype(), s));
    } else {
      fail_role(op_, kNoGradient, input.role);
    }
  }
  return result;
}

Arrays GatherCombine::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  const mx::Stream s = stream();
  const ExpertCall call = unpack(primals);
  mx::array total = scalar(0);
  for (std::size_t i = 0; i < argnums.size(); i++) {
    const Role role = layout_[argnums[i]].role;
    if (role == Role::x) {
      ExpertCall along = call;
      along.x = tangents[i];
      along.projections[0].bias.reset();
      total = mx::add(total, weighted(*call.scores, pieces(op_, along, options_, s), s), s);
    } else if (role == Role::scores) {
      total = mx::add(total, weighted(tangents[i], pieces(op_, call, options_, s), s), s);
    } else {
      fail_role(op_, "there is a tangent along x and scores, but none along", role);
    }
  }
  return {mx::astype(total, options_.out_type, s)};
}

ArraysAndAxes GatherCombine::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  const mx::Stream s = stream();
  ExpertCall call = unpack(inputs);
  const Mapped mapped(op_, "vmap maps x, the indices and the scores, but not", layout_, {Role::x, Role::rhs, Role::scores}, inputs, axes);
  // Indices and scores have the shape of the pairs, so both get the axis.
  const int rank = static_cast<int>(call.rhs.ndim()) - (mapped[Role::rhs] >= 0);
  auto spread = [&](const mx::array& x, Role role) {
    return mapped[role] >= 0 ? lead(x, mapped[role], rank, s) : lead_broadcast(x, mapped.size(), rank, s);
  };
  call.rhs = spread(call.rhs, Role::rhs);
  call.scores = spread(*call.scores, Role::scores);
  if (mapped[Role::x] >= 0) call.x = lead(call.x, mapped[Role::x], rank + 1, s);
  return {{gather_combine(op_, call, options_, s)}, {0}};
}

}  // namespace mlx_tensorops::cpu
