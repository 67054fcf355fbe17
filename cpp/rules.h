// Rules: postfix programs over the facts of a kernel's inputs.
//
// Launch geometry, output shapes and guards are rules and not numbers, because strides, offsets and
// (under shapeless compile) sizes are known only when the graph is evaluated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlx/array.h"

namespace mlx_tensorops {

using Arrays = std::vector<mlx::core::array>;

class Rule {
 public:
  // Throws std::invalid_argument on a malformed program.
  explicit Rule(std::string program);

  // Throws std::overflow_error, std::domain_error (division by zero) or std::invalid_argument (an
  // input or axis that does not exist).
  std::int64_t operator()(const Arrays& inputs) const;

  const std::string& text() const { return text_; }
  // Strides and addresses exist only on evaluated arrays.
  bool reads_layout() const { return reads_layout_; }
  // One more than the highest input that a fact names.
  int inputs_needed() const { return inputs_needed_; }

  static std::vector<std::string> vocabulary();

 private:
  struct Step {
    std::uint8_t code;
    std::int32_t input;
    std::int64_t value;  // the constant, or the axis
  };

  Step parse(std::string_view token);
  std::int64_t fact(const Step& step, const Arrays& inputs) const;
  [[noreturn]] void malformed(const std::string& why) const;

  std::string text_;
  std::vector<Step> steps_;
  bool reads_layout_ = false;
  int inputs_needed_ = 0;
};

}  // namespace mlx_tensorops
