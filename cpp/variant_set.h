// A VariantSet: every kernel that one resolved operation may need, one row per layout and alignment
// class. It is immutable and shared by all graph nodes of that operation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/dtype.h"
#include "rules.h"
#include "scalars.h"

namespace mlx_tensorops {

// One buffer argument of a kernel; its position in Row::bindings is the buffer index.
struct Binding {
  enum class Kind { kInput, kOutput, kScalars };
  Kind kind;
  int argument = 0;  // which input or output
  Scalars scalars;
  bool optional = false;  // an input the kernel does not touch where it has no elements
};

struct Row {
  std::string key;
  Rule when;
  std::string kernel;
  std::string source;
  std::vector<Binding> bindings;
  std::array<Rule, 3> grid;  // threadgroups
  std::array<std::uint32_t, 3> threads;  // threads per threadgroup
  std::vector<std::uint32_t> threadgroup_args;  // bytes of each [[threadgroup(n)]]
  std::string library;  // names the compiled source; set by VariantSet
};

struct Check {
  Rule rule;
  std::string message;
};

struct Output {
  mlx::core::Dtype dtype;
  std::vector<Rule> shape;
};

using Vjp = std::function<Arrays(const Arrays& primals, const Arrays& cotangents,
                                 const std::vector<int>& argnums)>;

class VariantSet {
 public:
  // Throws std::invalid_argument where the description contradicts itself or Metal's limits.
  // layouts: what every row asks of strides and addresses; the first that fails says why no row fits.
  VariantSet(std::string op, int inputs, std::vector<Output> outputs, std::vector<Check> checks,
             std::vector<Row> rows, Vjp vjp, std::vector<Check> layouts);

  VariantSet(const VariantSet&) = delete;
  VariantSet& operator=(const VariantSet&) = delete;

  const std::string& op() const { return op_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<Row>& rows() const { return rows_; }
  const Vjp& vjp() const { return vjp_; }

  // Number of inputs and every shape check; throws std::invalid_argument.
  void check(const Arrays& inputs) const;
  std::vector<mlx::core::Shape> output_shapes(const Arrays& inputs) const;
  // Whether an input that a kernel reads has no elements: then nothing runs, and the outputs are zeros. An input that no row
  // binds only gives its shape.
  bool reads_nothing(const Arrays& inputs) const;
  // The first row whose condition holds on these evaluated inputs; throws std::invalid_argument.
  const Row& pick(const Arrays& inputs) const;

 private:
  void validate() const;
  void validate(const Row& row) const;

  std::string op_;
  int inputs_;
  std::vector<Output> outputs_;
  std::vector<Check> checks_;
  std::vector<Check> layouts_;
  std::vector<Row> rows_;
  std::vector<int> read_;  // inputs that kernels read, however few elements they have
  Vjp vjp_;
};

}  // namespace mlx_tensorops
