#include "product.h"

#include <algorithm>
#include <limits>

#include "mlx/ops.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

using Given = const mx::array*;

bool is_real(const mx::array& x) {
  return x.dtype() == mx::float32 || x.dtype() == mx::float16 || x.dtype() == mx::bfloat16;
}

bool is_whole(const mx::array& x) {
  return mx::issubdtype(x.dtype(), mx::integer);
}

// The first axes of a shape, not copied.
struct Leading {
  const int* begin;
  std::size_t size;

  Leading(const mx::Shape& shape, std::size_t trailing) : begin(shape.data()), size(shape.size() - trailing) {}
  bool operator==(const Leading& o) const { return size == o.size && std::equal(begin, begin + size, o.begin); }
};

// Writes the broadcast of two shapes; false where there is none.
bool broadcast(Leading a, Leading b, mx::Shape& result) {
  if (a.size < b.size) std::swap(a, b);
  result = mx::Shape(a.begin, a.begin + a.size);
  for (std::size_t i = 0; i < b.size; i++) {
    int& size = result[a.size - b.size + i];
    const int other = b.begin[i];
    if (size == 1) size = other;
    else if (size != other && other != 1) return false;
  }
  return true;
}

bool broadcasts_to(const mx::array& x, const mx::Shape& result) {
  const auto& own = x.shape();
  if (own.size() > result.size()) return false;
  for (std::size_t i = 1; i <= own.size(); i++)
    if (own.end()[-i] != 1 && own.end()[-i] != result.end()[-i]) return false;
  return true;
}

struct Stored {
  Given w, scales, biases;

  Stored(Given w, Given scales, Given biases) : w(w), scales(scales), biases(biases) {}
  explicit Stored(const Argument& a) : Stored(a[0], a[1], a[2]) {}
};

// n of stored weights whose arrays agree with each other and with a K of x; -1 of others.
int columns(const WeightFormat* format, bool transpose, const Stored& s, int k) {
  if (!s.w || s.w->ndim() < 2) return -1;
  const auto& w = s.w->shape();
  const int rows = w.end()[-2], last = w.end()[-1];
  if (!format) {
    if (s.scales || s.biases || !is_real(*s.w)) return -1;
    return k == (transpose ? last : rows) ? (transpose ? rows : last) : -1;
  }
  if (!s.scales || s.scales->ndim() != w.size()) return -1;
  const auto& scales = s.scales->shape();
  if (s.biases && (s.biases->shape() != scales || s.biases->dtype() != s.scales->dtype())) return -1;
  const int64_t along = scales.end()[-1] * format->group;
  if (int64_t(last) * 32 != along * format->bits || scales.end()[-2] != rows || k != (transpose ? along : rows) ||
      !(Leading(w, 2) == Leading(scales, 2)))
    return -1;
  return transpose ? rows : static_cast<int>(along);
}

bool countable(const mx::Shape& pairs) {
  return count(pairs) <= std::numeric_limits<int32_t>::max();
}

}  // namespace

QuantizedProduct::QuantizedProduct(std::shared_ptr<const WeightFormat> format, bool transpose, mx::Dtype out_type, float divisor,
                                   Activation activation)
    : options_{std::move(format), transpose, out_type, false, false, divisor, false, activation, false} {}

std::vector<mx::array> QuantizedProduct::operator()(const Argument* given, std::size_t count, mx::Stream stream) const {
  if (count != 8) return {};
  Given arrays[8];
  for (int i = 0; i < 8; i++) arrays[i] = given[i][0];
  const auto [x, w, scales, biases, amax, prescaled, bias, residual] = arrays;
  const Given scale = amax ? amax : prescaled;
  if (!x || x->ndim() < 2 || !is_real(*x) || (amax && prescaled)) return {};
  const int n = columns(options_.format.get(), options_.transpose, {w, scales, biases}, x->shape(-1));
  if (n < 0 || (x->ndim() == 2 && w->ndim() > 2)) return {};  // a matrix meets the first of a stack of weights
  mx::Shape shape;
  if (w->ndim() == 2) shape = leading(*x, 2);
  else if (!broadcast({x->shape(), 2}, {w->shape(), 2}, shape)) return {};
  shape.push_back(x->shape(-2));
  shape.push_back(n);
  if (scale && (scale->ndim() != 1 || scale->size() != 1 || scale->dtype() != mx::float32)) return {};
  for (const Given addend : {bias, residual})
    if (addend && (!is_real(*addend) || !broadcasts_to(*addend, shape))) return {};
  QuantizedMatmul::Options options = options_;
  options.biases = biases, options.global_scale = scale, options.bias = bias, options.residual = residual;
  std::vector<mx::array> inputs;
  inputs.reserve(7);
  for (const Given array : {x, w, scales, biases, scale, bias, residual})
    if (array) inputs.push_back(*array);
  std::vector<mx::array> result;
  result.emplace_back(std::move(shape), options.out_type, std::make_shared<QuantizedMatmul>(stream, std::move(options)), std::move(inputs));
  return result;
}

namespace {

// One projection of a call, with what is done to its sums.
struct Tensor {
  Stored stored{nullptr, nullptr, nullptr};
  Given global_scale = nullptr, bias = nullptr;
};

// The nodes' inputs in the order of the full call, each with what it is.
class Inputs {
 public:
  Inputs() {
    arrays_.reserve(12);
    layout_.reserve(12);
  }
  void add(Given array, Input input) {
    if (!array) return;
    arrays_.push_back(*array);
    layout_.push_back(input);
  }
  void add(const Tensor& t, int projection, float divisor) {
    add(t.stored.w, {Role::w, projection});
    add(t.stored.scales, {Role::scales, projection});
    add(t.stored.biases, {Role::biases, projection});
    add(t.bias, {Role::bias, projection});
    add(t.global_scale, {Role::global_scale, projection, divisor});
  }
  template <typename Node>
  std::vector<mx::array> node(const char* op, mx::Stream stream, const ExpertOptions& options, mx::Shape shape) {
    const bool two = !arrays_.empty() && std::is_same_v<Node, GatherProducts> && projections() == 2 && options.gate.gate == Gate::none;
    auto primitive = std::make_shared<Node>(stream, op, options, std::move(layout_));
    if (two) return mx::array::make_arrays({shape, shape}, {options.out_type, options.out_type}, primitive, std::move(arrays_));
    std::vector<mx::array> result;
    result.emplace_back(std::move(shape), options.out_type, std::move(primitive), std::move(arrays_));
    return result;
  }

 private:
  long projections() const {
    return std::count_if(layout_.begin(), layout_.end(), [](const Input& i) { return i.role == Role::w; });
  }
  std::vector<mx::array> arrays_;
  std::vector<Input> layout_;
};

// n of all tensors, which have one shape; -1 where they do not fit.
int columns(const ExpertOptions& options, const Tensor* tensors, int count, int k) {
  int n = -1;
  for (int i = 0; i < count; i++) {
    const Tensor& t = tensors[i];
    n = columns(options.format, options.transpose, t.stored, k);
    if (n < 0) return -1;
    const auto& w = t.stored.w->shape();
    if (i > 0 && w != tensors[0].stored.w->shape()) return -1;
    if (t.bias && (!is_real(*t.bias) || t.bias->ndim() != 2 || w.size() != 3 || t.bias->shape(0) != w[0] || t.bias->shape(1) != n)) return -1;
    if (t.global_scale && (t.global_scale->dtype() != mx::float32 || t.global_scale->ndim() != 1 || w.size() != 3 || t.global_scale->shape(0) != w[0]))
      return -1;
  }
  return n;
}

}  // namespace

ExpertProduct::ExpertProduct(const char* op, int projections, ExpertOptions options, float divisor)
    : op_(op), projections_(projections), options_(options), divisor_(divisor) {}

std::vector<mx::array> ExpertProduct::operator()(const Argument* given, std::size_t count, mx::Stream stream) const {
  const int p = projections_;
  if (count != static_cast<std::size_t>(6 + p)) return {};
  const Given x = given[0][0], lhs = given[1 + p][0], rhs = given[2 + p][0];
  const Argument &amax = given[3 + p], &prescaled = given[4 + p], &bias = given[5 + p];
  if (!x || x->ndim() < 2 || !is_real(*x) || !rhs || !is_whole(*rhs) || (lhs && !is_whole(*lhs))) return {};
  Tensor tensors[kMostProjections];
  for (int i = 0; i < p; i++) {
    if (amax[i] && prescaled[i]) return {};
    tensors[i] = {Stored(given[1 + i]), amax[i] ? amax[i] : prescaled[i], bias[i]};
    if (!tensors[i].global_scale != !tensors[0].global_scale || !tensors[i].bias != !tensors[0].bias) return {};
  }
  const int n = columns(options_, tensors, p, x->shape(-1));
  mx::Shape shape;
  if (n < 0 || !broadcast(lhs ? Leading(lhs->shape(), 0) : Leading(x->shape(), 2), {rhs->shape(), 0}, shape) || !countable(shape)) return {};
  shape.push_back(x->shape(-2));
  shape.push_back(n);
  Inputs inputs;
  inputs.add(x, {Role::x});
  for (int i = 0; i < p; i++) inputs.add(tensors[i], i, divisor_);
  inputs.add(lhs, {Role::lhs});
  inputs.add(rhs, {Role::rhs});
  return inputs.node<GatherProducts>(op_, stream, options_, std::move(shape));
}

LayerProduct::LayerProduct(ExpertOptions gate_and_up, ExpertOptions down) : gate_and_up_(gate_and_up), down_(down) {}

std::vector<mx::array> LayerProduct::operator()(const Argument* given, std::size_t count, mx::Stream stream) const {
  if (count != 6) return {};
  const Given x = given[0][0], indices = given[4][0], scores = given[5][0];
  if (!x || x->ndim() < 1 || !is_real(*x) || !indices || indices->ndim() != x->ndim() || !is_whole(*indices) || !countable(indices->shape()) ||
      !(Leading(indices->shape(), 1) == Leading(x->shape(), 1)) || (scores && (!is_real(*scores) || scores->shape() != indices->shape())))
    return {};
  const Tensor two[] = {{Stored(given[1])}, {Stored(given[2])}}, down{Stored(given[3])};
  const int inner = columns(gate_and_up_, two, 2, x->shape(-1));
  if (inner < 0) return {};
  const int n = columns(down_, &down, 1, inner);
  if (n < 0 || !(Leading(down.stored.w->shape(), 2) == Leading(two[0].stored.w->shape(), 2))) return {};  // as many experts
  mx::Shape shape = indices->shape();
  shape.push_back(1);
  shape.push_back(inner);
  const mx::array rows = mx::expand_dims(*x, {-3, -2}, stream);
  Inputs first;
  first.add(&rows, {Role::x});
  first.add(two[0], 0, 1.0f);
  first.add(two[1], 1, 1.0f);
  first.add(indices, {Role::rhs});
  const mx::array hidden = first.node<GatherProducts>("cpu_gather_gateup", stream, gate_and_up_, shape)[0];
  const mx::array each = scores ? mx::squeeze(hidden, -2, stream) : hidden;
  Inputs last;
  last.add(&each, {Role::x});
  last.add(down, 0, 1.0f);
  last.add(indices, {Role::rhs});
  if (!scores) {
    shape.back() = n;
    return {mx::squeeze(last.node<GatherProducts>("cpu_gather_mm", stream, down_, std::move(shape))[0], -2, stream)};
  }
  last.add(scores, {Role::scores});
  shape.resize(shape.size() - 2);
  shape.back() = n;
  return last.node<GatherCombine>("cpu_gather_combine", stream, down_, std::move(shape));
}

}  // namespace mlx_tensorops::cpu
