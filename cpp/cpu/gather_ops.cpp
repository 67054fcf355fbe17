#include "gather_ops.h"

#include <limits>
#include <numeric>

#include "config.h"
#include "mlx/ops.h"
#include "operands.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

std::pair<Arrays, std::vector<Input>> pack(const ExpertCall& call) {
  Arrays inputs;
  std::vector<Input> layout;
  auto add = [&](const std::optional<mx::array>& array, Input input) {
    if (!array) return;
    inputs.push_back(*array);
    layout.push_back(input);
  };
  add(call.x, {Role::x});
  for (int i = 0; i < static_cast<int>(call.projections.size()); i++) {
    const ExpertArrays& p = call.projections[i];
    add(p.w, {Role::w, i});
    add(p.scales, {Role::scales, i});
    add(p.biases, {Role::biases, i});
    add(p.bias, {Role::bias, i});
    add(p.global_scale, {Role::global_scale, i, p.divisor});
  }
  add(call.lhs, {Role::lhs});
  add(call.rhs, {Role::rhs});
  for (const mx::array& tiles : call.plan) add(tiles, {Role::plan});
  add(call.scores, {Role::scores});
  return {std::move(inputs), std::move(layout)};
}

struct Sizes {
  int64_t experts, k, n;
};

Sizes sizes_of(const char* op, const ExpertArrays& p, const ExpertOptions& options) {
  const WeightSizes found = weight_sizes(op, options.format, options.transpose, p.w, p.scales, p.biases);
  const int64_t experts = count(found.batch);
  if (p.bias) {
    type_of(op, "bias", p.bias->dtype());
    if (p.bias->ndim() < 1 || p.bias->shape(-1) != found.n || static_cast<int64_t>(p.bias->size()) != experts * found.n)
      fail(op, "bias is ", p.bias->shape(), ", but must be [", experts, ", ", found.n, "]: one row for each expert");
  }
  if (p.global_scale) {
    const int64_t size = p.global_scale->size();
    if (p.global_scale->dtype() != mx::float32 || (size != 1 && size != experts))
      fail(op, "global_scale is ", p.global_scale->dtype(), " ", p.global_scale->shape(), ", but must be float32, one or ", experts,
           " (one for each expert)");
  }
  return {experts, found.k, found.n};
}

// The batch of pairs: lhs and rhs, or the batch of x and rhs, broadcast.
mx::Shape pairs_of(const char* op, const ExpertCall& call) {
  if (call.x.ndim() < 2) fail(op, "x is ", call.x.shape(), ", but needs two dimensions or more");
  const mx::Shape left = call.lhs ? call.lhs->shape() : leading(call.x, 2);
  mx::Shape batch = mx::broadcast_shapes(left, call.rhs.shape());
  if (count(batch) > std::numeric_limits<int32_t>::max())
    fail(op, count(batch), " pairs of rows and experts, but they are counted with int32; split the batch");
  return batch;
}

Sizes check(const char* op, const ExpertCall& call, const ExpertOptions& options) {
  type_of(op, "x", call.x.dtype());
  type_of(op, "out_dtype", options.out_type);
  integer_of(op, "rhs_indices", call.rhs.dtype());
  if (call.lhs) integer_of(op, "lhs_indices", call.lhs->dtype());
  Sizes sizes{};
  for (std::size_t i = 0; i < call.projections.size(); i++) {
    const Sizes own = sizes_of(op, call.projections[i], options);
    if (i > 0 && (own.experts != sizes.experts || own.n != sizes.n || own.k != sizes.k))
      fail(op, "the gate's weights hold ", sizes.experts, " experts of ", sizes.k, " x ", sizes.n, " and the up projection's ", own.experts,
           " of ", own.k, " x ", own.n, ", but they must agree");
    sizes = own;
  }
  if (call.x.shape(-1) != sizes.k)
    fail(op, "x is ", call.x.shape(), " and w holds ", sizes.k, " x ", sizes.n,
         ", but the last dimension of x must be ", sizes.k, "; is `transpose` right?");
  if (!call.plan.empty()) {
    for (const mx::array& tiles : call.plan)
      if (tiles.dtype() != mx::int32 || tiles.ndim() != 1)
        fail(op, "plan has ", tiles.dtype(), " ", tiles.shape(), ", but all of its arrays are int32 with one dimension");
    for (int i : {1, 2})
      if (call.plan[i].size() != call.plan[0].size())
        fail(op, "plan has tile arrays of ", call.plan[0].size(), " and ", call.plan[i].size(), " entries, but they must agree");
  }
  return sizes;
}

Projection describe(const char* op, const ExpertArrays& p, const ExpertOptions& options, mx::Stream stream, Arrays& kept) {
  const WeightSizes sizes = weight_sizes(op, options.format, options.transpose, p.w, p.scales, p.biases);
  Projection result;
  result.weights = weight_batch(options.format, options.transpose, p.w, p.scales, p.biases, sizes.batch, stream, kept);
  result.experts = count(sizes.batch);
  if (p.global_scale) {
    result.global_scale = p.global_scale->data<float>();
    result.global_scales = p.global_scale->size() == 1 ? Axes({result.experts}, {0})
                                                       : axes_of(*p.global_scale, p.global_scale->ndim(), p.global_scale->shape());
    result.divisor = p.divisor;
  }
  if (p.bias) {
    result.bias = {p.bias->data<char>(), type_of(op, "bias", p.bias->dtype()), 0, p.bias->strides(-1)};
    result.bias_rows = axes_of(*p.bias, p.bias->ndim() - 1, leading(*p.bias, 1));
  }
  return result;
}

// Divides every distance between rows of x.
int64_t unit_of(const mx::array& x) {
  int64_t unit = 0;
  for (int i = 0; i + 1 < static_cast<int>(x.ndim()); i++)
    if (x.shape(i) > 1) unit = std::gcd(unit, x.strides(i));
  return unit == 0 ? 1 : unit;
}

// x [..., M, K]. Without lhs its batch is broadcast to `pairs`.
RowSource describe_rows(const char* op, const mx::array& x, const std::optional<mx::array>& lhs, const mx::Shape& pairs) {
  RowSource rows;
  rows.x = matrix_of(op, x);
  rows.m = x.shape(-2);
  const mx::Shape own = leading(x, 2);
  rows.matrices = count(own);
  rows.batch = axes_of(x, x.ndim() - 2, lhs ? own : pairs);
  if (lhs) rows.lhs = indices_of(op, "lhs_indices", *lhs, pairs);
  rows.unit = unit_of(x);
  return rows;
}

}  // namespace

ExpertOp::ExpertOp(mx::Stream stream, const char* op, ExpertOptions options, std::vector<Input> layout)
    : CpuPrimitive(stream, op), options_(options), layout_(std::move(layout)) {}

bool ExpertOp::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const ExpertOp&>(other);
  return options_ == o.options_ && layout_ == o.layout_;
}

ExpertCall ExpertOp::unpack(const Arrays& inputs) const {
  std::optional<mx::array> x, rhs, lhs, scores;
  std::vector<ExpertArrays> projections;
  Arrays plan;
  for (std::size_t i = 0; i < inputs.size(); i++) {
    const Input& input = layout_[i];
    if (input.role == Role::w) projections.push_back({inputs[i], {}, {}, {}, {}});
    ExpertArrays* p = projections.empty() ? nullptr : &projections[input.projection];
    switch (input.role) {
      case Role::x: x = inputs[i]; break;
      case Role::w: break;
      case Role::scales: p->scales = inputs[i]; break;
      case Role::biases: p->biases = inputs[i]; break;
      case Role::bias: p->bias = inputs[i]; break;
      case Role::global_scale: p->global_scale = inputs[i], p->divisor = input.divisor; break;
      case Role::lhs: lhs = inputs[i]; break;
      case Role::rhs: rhs = inputs[i]; break;
      case Role::plan: plan.push_back(inputs[i]); break;
      case Role::scores: scores = inputs[i]; break;
    }
  }
  return {*x, std::move(projections), lhs, *rhs, std::move(plan), scores};
}

std::function<void()> GatherProducts::task(const Arrays& inputs, Arrays& outputs, Arrays& kept) {
  const ExpertCall call = unpack(inputs);
  const mx::Shape pairs = pairs_of(op_, call);
  Gather g;
  g.op = op_;
  for (const ExpertArrays& p : call.projections) g.projections.push_back(describe(op_, p, options_, stream(), kept));
  g.source = describe_rows(op_, call.x, call.lhs, pairs);
  g.ids = indices_of(op_, "rhs_indices", call.rhs, pairs);
  g.pairs = count(pairs);
  if (!call.plan.empty()) {
    auto indices = [&](int i) { return indices_of(op_, "plan", call.plan[i], call.plan[i].shape()); };
    g.plan = Tiles{indices(0), indices(1), indices(2), indices(3), static_cast<int64_t>(call.plan[0].size())};
  }
  g.activation = options_.activation;
  g.gate = options_.gate;
  g.out_type = type_of(op_, "out_dtype", options_.out_type);
  for (mx::array& out : outputs) g.out.push_back(out.data<char>());
  return [g = std::move(g)] { gather(g, settings()); };
}

Shapes GatherProducts::output_shapes(const Arrays& inputs) {
  const ExpertCall call = unpack(inputs);
  const Sizes sizes = check(op_, call, options_);
  mx::Shape shape = pairs_of(op_, call);
  if (!call.plan.empty() && static_cast<int64_t>(call.plan[3].size()) != count(shape))
    fail(op_, "plan orders ", call.plan[3].size(), " rows, but the indices have ", count(shape));
  shape.push_back(call.x.shape(-2));
  shape.push_back(static_cast<int>(sizes.n));
  const bool two = call.projections.size() == 2 && options_.gate.gate == Gate::none;
  return Shapes(two ? 2 : 1, shape);
}

std::function<void()> GatherCombine::task(const Arrays& inputs, Arrays& outputs, Arrays& kept) {
  const ExpertCall call = unpack(inputs);
  const mx::Shape& pairs = call.rhs.shape();
  Combine c;
  c.projection = describe(op_, call.projections[0], options_, stream(), kept);
  // Each row of x is a matrix of one row.
  c.source.x = {call.x.data<char>(), type_of(op_, "x", call.x.dtype()), 0, call.x.strides(-1)};
  c.source.batch = axes_of(call.x, call.x.ndim() - 1, pairs);
  c.source.unit = unit_of(call.x);
  c.ids = indices_of(op_, "rhs_indices", call.rhs, pairs);
  c.k = pairs.back();
  c.tokens = count(leading(call.rhs, 1));
  c.scores = call.scores->data<char>();
  c.scores_type = type_of(op_, "scores", call.scores->dtype());
  c.score = axes_of(*call.scores, call.scores->ndim(), pairs);
  c.out_type = type_of(op_, "out_dtype", options_.out_type);
  c.out = outputs[0].data<char>();
  return [c = std::move(c)] { combine(c, settings()); };
}

Shapes GatherCombine::output_shapes(const Arrays& inputs) {
  const ExpertCall call = unpack(inputs);
  const Sizes sizes = check(op_, call, options_);
  const mx::Shape& pairs = call.rhs.shape();
  type_of(op_, "scores", call.scores->dtype());
  if (pairs.empty()) fail(op_, "rhs_indices have no dimension, but the last one counts the experts of a token");
  if (count(pairs) > std::numeric_limits<int32_t>::max())
    fail(op_, count(pairs), " pairs of tokens and experts, but they are counted with int32; split the batch");
  if (call.scores->shape() != pairs)
    fail(op_, "scores are ", call.scores->shape(), " and rhs_indices ", pairs, ", but they must agree");
  const mx::Shape rows = leading(call.x, 1);
  if (rows.size() > pairs.size() || mx::broadcast_shapes(rows, pairs) != pairs)
    fail(op_, "x is ", call.x.shape(), ", but needs a row for each of the indices ", pairs);
  mx::Shape shape = leading(call.rhs, 1);
  shape.push_back(static_cast<int>(sizes.n));
  return {shape};
}

Arrays gather_products(const char* op, const ExpertCall& call, const ExpertOptions& options, mx::StreamOrDevice where) {
  auto [inputs, layout] = pack(call);
  auto primitive = std::make_shared<GatherProducts>(cpu_stream(op, where), op, options, std::move(layout));
  Shapes shapes = primitive->output_shapes(inputs);
  std::vector<mx::Dtype> types(shapes.size(), options.out_type);
  return mx::array::make_arrays(std::move(shapes), types, primitive, inputs);
}

mx::array gather_combine(const char* op, const ExpertCall& call, const ExpertOptions& options, mx::StreamOrDevice where) {
  auto [inputs, layout] = pack(call);
  auto primitive = std::make_shared<GatherCombine>(cpu_stream(op, where), op, options, std::move(layout));
  mx::Shape shape = primitive->output_shapes(inputs)[0];
  return mx::array(std::move(shape), options.out_type, std::move(primitive), std::move(inputs));
}

void fail_role(const char* op, const char* what, Role role) {
  constexpr const char* names[kRoles] = {"x", "w", "scales", "biases", "bias", "global_scale", "lhs_indices", "rhs_indices", "plan", "scores"};
  fail(op, what, " ", names[static_cast<int>(role)]);
}

}  // namespace mlx_tensorops::cpu
