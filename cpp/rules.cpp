#include "rules.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace mlx_tensorops {
namespace {

enum Code : std::uint8_t {
  kConstant, kSize, kStride, kAddress, kRank,
  kAdd, kSub, kMul, kFloorDiv, kMod, kCeilDiv, kMin, kMax,
  kEq, kNe, kLt, kLe, kGt, kGe, kAnd, kOr,
  kNot, kSelect,
};

struct Operator {
  std::string_view name;
  Code code;
  int arity;
};

constexpr Operator kOperators[] = {
    {"+", kAdd, 2},   {"-", kSub, 2},  {"*", kMul, 2},        {"//", kFloorDiv, 2},
    {"%", kMod, 2},   {"ceildiv", kCeilDiv, 2},               {"min", kMin, 2},
    {"max", kMax, 2}, {"==", kEq, 2},  {"!=", kNe, 2},        {"<", kLt, 2},
    {"<=", kLe, 2},   {">", kGt, 2},   {">=", kGe, 2},        {"and", kAnd, 2},
    {"or", kOr, 2},   {"not", kNot, 1}, {"select", kSelect, 3},
};

// The evaluation stack lives on the C++ stack: the enqueue path must not allocate. Left-associated
// chains of any length need depth 2; the generated rules stay below 10.
constexpr int kMaxDepth = 64;

int arity(std::uint8_t code) {
  for (const auto& op : kOperators) {
    if (op.code == code) {
      return op.arity;
    }
  }
  return 0;
}

template <typename T>
bool parse_integer(std::string_view text, T& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

struct Overflow {};
struct DivisionByZero {};

std::int64_t divide(std::int64_t a, std::int64_t b, bool up) {
  if (b == 0) {
    throw DivisionByZero();
  }
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) {
    throw Overflow();
  }
  const std::int64_t quotient = a / b;
  if (a % b == 0) {
    return quotient;
  }
  const bool positive = (a < 0) == (b < 0);
  return up ? quotient + positive : quotient - !positive;
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) {
    throw DivisionByZero();
  }
  if (b == -1) {
    return 0;  // INT64_MIN % -1 traps on x86
  }
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t apply(Code code, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (code) {
    case kAdd:
      if (__builtin_add_overflow(a, b, &result)) throw Overflow();
      return result;
    case kSub:
      if (__builtin_sub_overflow(a, b, &result)) throw Overflow();
      return result;
    case kMul:
      if (__builtin_mul_overflow(a, b, &result)) throw Overflow();
      return result;
    case kFloorDiv: return divide(a, b, false);
    case kCeilDiv: return divide(a, b, true);
    case kMod: return modulo(a, b);
    case kMin: return std::min(a, b);
    case kMax: return std::max(a, b);
    case kEq: return a == b;
    case kNe: return a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    case kGe: return a >= b;
    case kAnd: return a != 0 && b != 0;
    case kOr: return a != 0 || b != 0;
    default: throw std::logic_error("rule: not a binary operator");
  }
}

}  // namespace

Rule::Rule(std::string program) : text_(std::move(program)) {
  std::string_view rest = text_;
  int depth = 0;
  while (true) {
    const auto space = rest.find(' ');
    const std::string token(rest.substr(0, space));
    steps_.push_back(parse(token));
    const int taken = arity(steps_.back().code);
    if (depth < taken) {
      malformed("operator " + token + " lacks operands");
    }
    depth += 1 - taken;
    if (depth > kMaxDepth) {
      malformed("needs a stack deeper than " + std::to_string(kMaxDepth));
    }
    if (space == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(space + 1);
  }
  if (depth != 1) {
    malformed("leaves " + std::to_string(depth) + " values instead of one");
  }
}

Rule::Step Rule::parse(std::string_view token) {
  for (const auto& op : kOperators) {
    if (op.name == token) {
      return {op.code, 0, 0};
    }
  }
  Step step{kConstant, 0, 0};
  if (parse_integer(token, step.value)) {
    return step;
  }
  const auto unknown = [&]() { malformed("no such token: " + std::string(token)); };
  if (token.size() < 2) {
    unknown();
  }
  const auto dot = token.find('.');
  const bool has_axis = dot != std::string_view::npos;
  switch (token[0]) {
    case 'd': step.code = kSize; break;
    case 's': step.code = kStride; break;
    case 'p': step.code = kAddress; break;
    case 'n': step.code = kRank; break;
    default: unknown();
  }
  const bool wants_axis = step.code == kSize || step.code == kStride;
  std::int32_t axis = 0;
  if (has_axis != wants_axis ||
      !parse_integer(token.substr(1, has_axis ? dot - 1 : dot), step.input) || step.input < 0 ||
      (has_axis && !parse_integer(token.substr(dot + 1), axis))) {
    unknown();
  }
  step.value = axis;
  reads_layout_ |= step.code == kStride || step.code == kAddress;
  inputs_needed_ = std::max(inputs_needed_, step.input + 1);
  return step;
}

std::int64_t Rule::fact(const Step& step, const Arrays& inputs) const {
  if (static_cast<std::size_t>(step.input) >= inputs.size()) {
    throw std::invalid_argument(
        "rule '" + text_ + "': input " + std::to_string(step.input) + " does not exist, there are " +
        std::to_string(inputs.size()));
  }
  const auto& input = inputs[step.input];
  if (step.code == kRank) {
    return static_cast<std::int64_t>(input.ndim());
  }
  if (step.code == kAddress) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(input.data<char>()));
  }
  const auto rank = static_cast<std::int64_t>(input.ndim());
  const auto axis = step.value < 0 ? step.value + rank : step.value;
  if (axis < 0 || axis >= rank) {
    throw std::invalid_argument(
        "rule '" + text_ + "': input " + std::to_string(step.input) + " has no axis " +
        std::to_string(step.value) + ", it has " + std::to_string(rank) + " dimensions");
  }
  return step.code == kSize ? input.shape()[axis] : input.strides()[axis];
}

std::int64_t Rule::operator()(const Arrays& inputs) const {
  std::int64_t stack[kMaxDepth];
  int top = -1;
  try {
    for (const auto& step : steps_) {
      switch (step.code) {
        case kConstant:
          stack[++top] = step.value;
          break;
        case kSize:
        case kStride:
        case kAddress:
        case kRank:
          stack[++top] = fact(step, inputs);
          break;
        case kNot:
          stack[top] = stack[top] == 0;
          break;
        case kSelect:  // condition, value if true, value if false
          top -= 2;
          stack[top] = stack[top] != 0 ? stack[top + 1] : stack[top + 2];
          break;
        default:
          --top;
          stack[top] = apply(static_cast<Code>(step.code), stack[top], stack[top + 1]);
      }
    }
  } catch (const Overflow&) {
    throw std::overflow_error("rule '" + text_ + "' overflows 64 bits");
  } catch (const DivisionByZero&) {
    throw std::domain_error("rule '" + text_ + "' divides by zero");
  }
  return stack[0];
}

std::vector<std::string> Rule::vocabulary() {
  std::vector<std::string> names;
  for (const auto& op : kOperators) {
    names.emplace_back(op.name);
  }
  return names;
}

void Rule::malformed(const std::string& why) const {
  throw std::invalid_argument("rule '" + text_ + "': " + why);
}

}  // namespace mlx_tensorops
