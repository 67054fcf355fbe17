#include "variant_set.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "mlx/utils.h"

namespace mlx_tensorops {
namespace {

// Limits of every Apple GPU family that runs cooperative tensors (Metal feature set tables).
constexpr std::size_t kMaxBuffers = 31;
constexpr std::size_t kMaxSetBytes = 4096;
constexpr std::uint64_t kMaxThreads = 1024;
constexpr std::uint64_t kMaxThreadgroupBytes = 32768;

[[noreturn]] void fail(const std::string& op, const std::string& what) {
  throw std::invalid_argument("[" + op + "] " + what);
}

// MLX caches a compiled library by name for the life of the process, so the name must follow from the
// source. FNV-1a, 64 bits: for 10,000 sources the chance of a collision is below 1e-11.
std::string library_name(const Row& row) {
  std::uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : row.source) {
    hash = (hash ^ c) * 1099511628211ull;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return "mlx_tensorops_" + row.kernel + "_" + digits;
}

std::string describe(const Arrays& inputs) {
  std::ostringstream text;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    text << (i ? ", " : "") << "input " << i << ": shape " << inputs[i].shape() << " strides "
         << inputs[i].strides();
  }
  return text.str();
}

}  // namespace

VariantSet::VariantSet(std::string op, int inputs, std::vector<Output> outputs,
                       std::vector<Check> checks, std::vector<Row> rows, Vjp vjp,
                       std::vector<Check> layouts)
    : op_(std::move(op)),
      inputs_(inputs),
      outputs_(std::move(outputs)),
      checks_(std::move(checks)),
      layouts_(std::move(layouts)),
      rows_(std::move(rows)),
      vjp_(std::move(vjp)) {
  validate();
  for (auto& row : rows_) {
    row.library = library_name(row);
    for (const auto& binding : row.bindings) {
      const bool needed = binding.kind == Binding::Kind::kInput && !binding.optional;
      if (needed && std::find(read_.begin(), read_.end(), binding.argument) == read_.end()) {
        read_.push_back(binding.argument);
      }
    }
  }
}

void VariantSet::check(const Arrays& inputs) const {
  if (inputs.size() != static_cast<std::size_t>(inputs_)) {
    fail(op_, "takes " + std::to_string(inputs_) + " inputs and got " + std::to_string(inputs.size()));
  }
  for (const auto& check : checks_) {
    if (check.rule(inputs) == 0) {
      throw std::invalid_argument(check.message);
    }
  }
}

std::vector<mlx::core::Shape> VariantSet::output_shapes(const Arrays& inputs) const {
  std::vector<mlx::core::Shape> shapes;
  shapes.reserve(outputs_.size());
  for (const auto& output : outputs_) {
    mlx::core::Shape shape;
    for (const auto& rule : output.shape) {
      const auto size = rule(inputs);
      if (size < 0 || size > std::numeric_limits<mlx::core::ShapeElem>::max()) {
        fail(op_, "output size " + std::to_string(size) + " (rule '" + rule.text() +
                      "') is outside 0 .. 2^31 - 1, the sizes of an MLX axis");
      }
      shape.push_back(static_cast<mlx::core::ShapeElem>(size));
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

bool VariantSet::reads_nothing(const Arrays& inputs) const {
  return std::any_of(read_.begin(), read_.end(), [&](int i) { return inputs[i].size() == 0; });
}

const Row& VariantSet::pick(const Arrays& inputs) const {
  for (const auto& row : rows_) {
    if (row.when(inputs) != 0) {
      return row;
    }
  }
  for (const auto& layout : layouts_) {
    if (layout.rule(inputs) == 0) {
      throw std::invalid_argument(layout.message);
    }
  }
  std::string keys;
  for (const auto& row : rows_) {
    keys += (keys.empty() ? "" : ", ") + row.key;
  }
  fail(op_, "no kernel takes " + describe(inputs) + "; there are kernels for: " + keys);
}

void VariantSet::validate() const {
  if (inputs_ < 1 || outputs_.empty() || rows_.empty()) {
    fail(op_, "a VariantSet has at least one input, one output and one row");
  }
  const auto known = [&](const Rule& rule, bool shape_only, const std::string& place) {
    if (rule.inputs_needed() > inputs_) {
      fail(op_, place + " '" + rule.text() + "' reads an input beyond the " + std::to_string(inputs_) +
                    " that there are");
    }
    if (shape_only && rule.reads_layout()) {
      fail(op_, place + " '" + rule.text() +
                    "' reads strides or addresses, which do not exist before the graph is evaluated");
    }
  };
  for (const auto& output : outputs_) {
    for (const auto& rule : output.shape) {
      known(rule, true, "output shape");
    }
  }
  for (const auto& check : checks_) {
    known(check.rule, true, "check");
  }
  for (const auto& layout : layouts_) {
    known(layout.rule, false, "layout");
  }
  for (const auto& row : rows_) {
    known(row.when, false, "row '" + row.key + "': condition");
    for (const auto& rule : row.grid) {
      known(rule, false, "row '" + row.key + "': grid");
    }
    for (const auto& binding : row.bindings) {
      for (const auto& rule : binding.scalars.rules) {
        known(rule, false, "row '" + row.key + "': scalar");
      }
    }
    validate(row);
  }
}

void VariantSet::validate(const Row& row) const {
  const auto bad = [&](const std::string& what) { fail(op_, "row '" + row.key + "': " + what); };
  if (row.bindings.size() > kMaxBuffers) {
    bad(std::to_string(row.bindings.size()) + " buffers, Metal has " + std::to_string(kMaxBuffers));
  }
  std::vector<int> writers(outputs_.size(), 0);
  for (const auto& binding : row.bindings) {
    const bool output = binding.kind == Binding::Kind::kOutput;
    const int limit = output ? static_cast<int>(outputs_.size()) : inputs_;
    if (binding.kind == Binding::Kind::kScalars) {
      if (binding.scalars.rules.empty() ||
          binding.scalars.format.size() != binding.scalars.rules.size()) {
        bad("scalars need one format letter per rule, and at least one");
      }
      if (binding.scalars.bytes() > kMaxSetBytes) {
        bad("scalars of more than " + std::to_string(kMaxSetBytes) + " bytes do not fit setBytes");
      }
    } else if (binding.argument < 0 || binding.argument >= limit) {
      bad(std::string(output ? "output " : "input ") + std::to_string(binding.argument) +
          " does not exist");
    } else if (output) {
      ++writers[binding.argument];
    }
  }
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (writers[i] != 1) {
      bad("output " + std::to_string(i) + " is bound " + std::to_string(writers[i]) +
          " times instead of once");
    }
  }
  std::uint64_t threads = 1;
  for (auto count : row.threads) {
    // Saturates: three 32-bit factors would overflow the product.
    threads = count > kMaxThreads ? kMaxThreads + 1 : threads * count;
  }
  if (threads < 1 || threads > kMaxThreads) {
    bad("threads per threadgroup must be 1 .. " + std::to_string(kMaxThreads));
  }
  if (row.threadgroup_args.size() > kMaxBuffers) {
    bad(std::to_string(row.threadgroup_args.size()) + " threadgroup arguments, Metal has " +
        std::to_string(kMaxBuffers));
  }
  std::uint64_t bytes = 0;
  for (auto length : row.threadgroup_args) {
    // MTLComputeCommandEncoder.setThreadgroupMemoryLength takes multiples of 16.
    if (length == 0 || length % 16 != 0) {
      bad("threadgroup argument of " + std::to_string(length) + " bytes is not a multiple of 16");
    }
    bytes += length;
  }
  if (bytes > kMaxThreadgroupBytes) {
    bad(std::to_string(bytes) + " threadgroup bytes, the limit is " +
        std::to_string(kMaxThreadgroupBytes));
  }
}

}  // namespace mlx_tensorops
