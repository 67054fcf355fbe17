#include <algorithm>
#include <limits>
#include <stdexcept>

#include "encoder.h"
#include "mlx/allocator.h"

namespace mlx_tensorops {
namespace {

Grid grid_of(const VariantSet& variants, const Row& row, const Arrays& inputs) {
  Grid grid{};
  for (std::size_t axis = 0; axis < grid.size(); ++axis) {
    const auto count = row.grid[axis](inputs);
    if (count < 1 || count > std::numeric_limits<std::uint32_t>::max()) {
      throw std::invalid_argument(
          "[" + variants.op() + "] row '" + row.key + "': " + std::to_string(count) +
          " threadgroups along axis " + std::to_string(axis) + " (rule '" + row.grid[axis].text() +
          "'), a launch takes 1 .. 2^32 - 1");
    }
    grid[axis] = static_cast<std::uint32_t>(count);
  }
  return grid;
}

bool empty(const mlx::core::array& array) { return array.size() == 0; }

// Bound in place of an array without elements: it has no memory, so there is no Metal buffer to bind.
std::vector<std::byte> no_elements() { return std::vector<std::byte>(16); }

}  // namespace

void encode(const VariantSet& variants, const Arrays& inputs, Arrays& outputs, Encoder& encoder) {
  variants.check(inputs);
  const auto shapes = variants.output_shapes(inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // A replayed graph carries the shapes it was traced with; a wrong one would be written past its end.
    if (outputs[i].shape() != shapes[i]) {
      throw std::logic_error(
          "[" + variants.op() + "] output " + std::to_string(i) +
          " was planned with another shape than its inputs give");
    }
    outputs[i].set_data(mlx::core::allocator::malloc(outputs[i].nbytes()));
  }
  if (std::all_of(outputs.begin(), outputs.end(), empty)) {
    return;
  }
  if (variants.reads_nothing(inputs)) {
    for (auto& output : outputs) {
      encoder.zero(output);
    }
    return;
  }
  const Row& row = variants.pick(inputs);
  encoder.kernel(row);
  for (std::size_t i = 0; i < row.bindings.size(); ++i) {
    const auto& binding = row.bindings[i];
    const int index = static_cast<int>(i);
    switch (binding.kind) {
      case Binding::Kind::kInput:
        if (empty(inputs[binding.argument])) {
          encoder.bytes(index, no_elements());
        } else {
          encoder.input(index, inputs[binding.argument]);
        }
        break;
      case Binding::Kind::kOutput:
        if (empty(outputs[binding.argument])) {
          encoder.bytes(index, no_elements());
        } else {
          encoder.output(index, outputs[binding.argument]);
        }
        break;
      case Binding::Kind::kScalars:
        encoder.bytes(index, binding.scalars.pack(inputs));
        break;
    }
  }
  encoder.dispatch(grid_of(variants, row, inputs));
}

}  // namespace mlx_tensorops
