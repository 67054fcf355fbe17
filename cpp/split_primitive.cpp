#include "split_primitive.h"

#include <limits>
#include <stdexcept>

#include "mlx/ops.h"

namespace mx = mlx::core;

namespace mlx_tensorops {
namespace {

// Shares the buffer: whatever the stride of the first axis is, its parts have multiples of it.
void view(const mx::array& in, mx::array& out, int axes) {
  auto flags = in.flags();
  mx::Strides strides(out.ndim());
  for (int i = axes; i < static_cast<int>(out.ndim()); ++i) {
    strides[i] = in.strides(i - axes + 1);
  }
  auto step = in.strides(0);
  std::size_t larger_than_one = 0;
  for (int i = axes - 1; i >= 0; --i) {
    strides[i] = step;
    step *= out.shape(i);
  }
  for (auto size : out.shape()) {
    larger_than_one += size > 1;
  }
  flags.col_contiguous = flags.row_contiguous && larger_than_one <= 1;
  out.copy_shared_buffer(in, strides, flags, in.data_size());
}

}  // namespace

Split::Split(std::string op, int inputs, std::vector<Rule> sizes, std::vector<Check> checks)
    : op_(std::move(op)), inputs_(inputs), sizes_(std::move(sizes)), checks_(std::move(checks)) {
  const auto known = [&](const Rule& rule) {
    if (rule.reads_layout() || rule.inputs_needed() > inputs_) {
      throw std::invalid_argument("[" + op_ + "] '" + rule.text() + "' reads strides, addresses or an input beyond the " +
                                  std::to_string(inputs_) + " that there are");
    }
  };
  if (inputs_ < 1 || sizes_.empty()) {
    throw std::invalid_argument("[" + op_ + "] a split has at least one input and one size");
  }
  for (const auto& rule : sizes_) {
    known(rule);
  }
  for (const auto& check : checks_) {
    known(check.rule);
  }
}

mx::Shape Split::shape(const Arrays& inputs) const {
  if (inputs.size() != static_cast<std::size_t>(inputs_) || inputs[0].ndim() == 0) {
    throw std::invalid_argument("[" + op_ + "] a split takes an array with an axis, and " + std::to_string(inputs_ - 1) + " for sizes");
  }
  for (const auto& check : checks_) {
    if (check.rule(inputs) == 0) {
      throw std::invalid_argument(check.message);
    }
  }
  mx::Shape shape;
  std::int64_t product = 1;
  const std::int64_t whole = inputs[0].shape(0);
  for (const auto& rule : sizes_) {
    const auto size = rule(inputs);
    if (size < 0 || size > std::numeric_limits<mx::ShapeElem>::max()) {
      throw std::invalid_argument("[" + op_ + "] size " + std::to_string(size) + " of an axis");
    }
    shape.push_back(static_cast<mx::ShapeElem>(size));
    product = product > whole && size != 0 ? product : product * size;  // both below 2^31: no overflow
  }
  if (product != whole) {
    throw std::invalid_argument("[" + op_ + "] " + std::to_string(whole) + " rows are not those of the axes that the inputs have now; "
                                "trace the graph again for these shapes");
  }
  shape.insert(shape.end(), inputs[0].shape().begin() + 1, inputs[0].shape().end());
  return shape;
}

SplitPrimitive::SplitPrimitive(mx::Stream stream, std::shared_ptr<const Split> split)
    : Primitive(stream), split_(std::move(split)) {}

void SplitPrimitive::eval_cpu(const Arrays& inputs, Arrays& outputs) { view(inputs[0], outputs[0], split_->axes()); }

void SplitPrimitive::eval_gpu(const Arrays& inputs, Arrays& outputs) { view(inputs[0], outputs[0], split_->axes()); }

Arrays SplitPrimitive::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                           const Arrays&) {
  Arrays gradients;
  for (int i : argnums) {
    // The other inputs give their shapes only.
    gradients.push_back(i == 0 ? mx::flatten(cotangents[0], 0, split_->axes() - 1, stream())
                               : mx::zeros_like(primals[i], stream()));
  }
  return gradients;
}

Arrays SplitPrimitive::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  Arrays inputs = primals;
  inputs[0] = mx::zeros_like(primals[0], stream());
  for (std::size_t i = 0; i < argnums.size(); ++i) {
    if (argnums[i] == 0) {
      inputs[0] = tangents[i];
    }
  }
  return {split(split_, std::move(inputs), stream())};
}

std::vector<mx::Shape> SplitPrimitive::output_shapes(const Arrays& inputs) { return {split_->shape(inputs)}; }

bool SplitPrimitive::is_equivalent(const mx::Primitive& other) const {
  const auto* that = dynamic_cast<const SplitPrimitive*>(&other);
  return that && split_ == that->split_;
}

mx::array split(std::shared_ptr<const Split> how, Arrays inputs, mx::Stream stream) {
  auto shape = how->shape(inputs);
  const auto dtype = inputs[0].dtype();
  return mx::array(std::move(shape), dtype, std::make_shared<SplitPrimitive>(stream, std::move(how)), std::move(inputs));
}

}  // namespace mlx_tensorops
