#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gather_ops.h"
#include "matmul.h"
#include "product.h"
#include "qmm.h"
#include "tile_plan.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {
namespace {

using Optional = std::optional<mx::array>;
using cpu::GlobalScale;
using Stored = std::tuple<mx::array, Optional, Optional, Optional>;  // w, scales, biases, bias
using PlanArrays = std::optional<std::vector<mx::array>>;

constexpr std::pair<const char*, cpu::Gate> kGates[] = {
    {"swiglu", cpu::Gate::swiglu},
    {"geglu_tanh", cpu::Gate::geglu_tanh},
    {"geglu_erf", cpu::Gate::geglu_erf},
    {"swiglu_clamped", cpu::Gate::swiglu_clamped},
};

const cpu::WeightFormat* format_of(const char* op, const std::optional<cpu::NativeFormat>& native) {
  return native ? cpu::format_of(op, *native).get() : nullptr;
}

cpu::ExpertArrays experts_of(const Stored& stored, const GlobalScale& global_scale) {
  auto& [w, scales, biases, bias] = stored;
  cpu::ExpertArrays arrays{w, scales, biases, bias, {}};
  if (global_scale) {
    arrays.global_scale = global_scale->first;
    arrays.divisor = global_scale->second;
  }
  return arrays;
}

std::vector<mx::array> plan_of(const char* op, const PlanArrays& plan) {
  if (plan && plan->size() != 4)
    cpu::fail(op, "plan has ", plan->size(), " arrays, but must be (tile_expert, tile_row_start, tile_row_count, order)");
  return plan.value_or(std::vector<mx::array>{});
}

cpu::GateFunction gate_of(const char* op, const std::optional<std::string>& activation, float alpha, float limit) {
  cpu::GateFunction function{cpu::Gate::none, alpha, limit};
  std::string names;
  for (auto& [name, value] : kGates) {
    if (activation && *activation == name) function.gate = value;
    names += ", " + std::string(name);
  }
  if (activation && function.gate == cpu::Gate::none)
    cpu::fail(op, "activation = '", *activation, "' is not known; it may be None", names);
  if (alpha == 0.0f || !(limit >= 0.0f)) cpu::fail(op, "alpha = ", alpha, " and limit = ", limit, ", but alpha must not be 0 and limit not negative");
  return function;
}

mx::array gather_mm(const mx::array& x, const mx::array& w, const Optional& scales, const Optional& biases,
                    const std::optional<cpu::NativeFormat>& fmt, bool transpose, const DtypeOrName& out_dtype, const Optional& lhs,
                    const mx::array& rhs, const GlobalScale& global_scale, const Optional& bias,
                    const std::optional<std::string>& activation, const PlanArrays& plan, mx::StreamOrDevice stream) {
  constexpr const char* op = "cpu_gather_mm";
  const cpu::ExpertCall call{x, {experts_of({w, scales, biases, bias}, global_scale)}, lhs, rhs, plan_of(op, plan), {}};
  return cpu::gather_products(op, call, {format_of(op, fmt), transpose, dtype_of(op, out_dtype), cpu::activation_of(activation.value_or("")), {}},
                              stream)[0];
}

std::vector<mx::array> gather_gateup(const mx::array& x, const Stored& gate, const Stored& up,
                                     const std::optional<cpu::NativeFormat>& fmt, bool transpose, const DtypeOrName& out_dtype,
                                     const Optional& lhs, const mx::array& rhs,
                                     const std::pair<GlobalScale, GlobalScale>& global_scales,
                                     const std::optional<std::string>& activation, float alpha, float limit, const PlanArrays& plan,
                                     mx::StreamOrDevice stream) {
  constexpr const char* op = "cpu_gather_gateup";
  const cpu::ExpertCall call{x,   {experts_of(gate, global_scales.first), experts_of(up, global_scales.second)},
                             lhs, rhs, plan_of(op, plan), {}};
  return cpu::gather_products(op, call, {format_of(op, fmt), transpose, dtype_of(op, out_dtype), cpu::Activation::none, gate_of(op, activation, alpha, limit)},
                              stream);
}

mx::array gather_combine(const mx::array& x, const mx::array& w, const Optional& scales, const Optional& biases,
                         const std::optional<cpu::NativeFormat>& fmt, bool transpose, const DtypeOrName& out_dtype, const mx::array& rhs,
                         const mx::array& scores, const GlobalScale& global_scale, const Optional& bias, mx::StreamOrDevice stream) {
  constexpr const char* op = "cpu_gather_combine";
  const cpu::ExpertCall call{x, {experts_of({w, scales, biases, bias}, global_scale)}, {}, rhs, {}, scores};
  return cpu::gather_combine(op, call, {format_of(op, fmt), transpose, dtype_of(op, out_dtype), cpu::Activation::none, {}}, stream);
}

using Format = std::optional<cpu::NativeFormat>;
using Name = std::optional<std::string>;

std::shared_ptr<cpu::Prepared> gather_product(const Format& fmt, bool transpose, const DtypeOrName& out_dtype, float divisor, const Name& activation) {
  constexpr const char* op = "cpu_gather_mm";
  const cpu::ExpertOptions options{format_of(op, fmt), transpose, dtype_of(op, out_dtype), cpu::activation_of(activation.value_or("")), {}};
  return std::make_shared<cpu::ExpertProduct>(op, 1, options, divisor);
}

std::shared_ptr<cpu::Prepared> gateup_product(const Format& fmt, bool transpose, const DtypeOrName& out_dtype, float divisor, const Name& activation,
                                             float alpha, float limit) {
  constexpr const char* op = "cpu_gather_gateup";
  const cpu::ExpertOptions options{format_of(op, fmt), transpose, dtype_of(op, out_dtype), cpu::Activation::none,
                                   gate_of(op, activation, alpha, limit)};
  return std::make_shared<cpu::ExpertProduct>(op, 2, options, divisor);
}

std::shared_ptr<cpu::Prepared> layer_product(const Format& fmt, const Format& down, bool transpose, const DtypeOrName& hidden,
                                            const DtypeOrName& out_dtype, const std::string& activation, float alpha, float limit) {
  constexpr const char* op = "switch_glu";
  const cpu::ExpertOptions first{format_of(op, fmt), transpose, dtype_of(op, hidden), cpu::Activation::none, gate_of(op, activation, alpha, limit)};
  return std::make_shared<cpu::LayerProduct>(first, cpu::ExpertOptions{format_of(op, down), transpose, dtype_of(op, out_dtype),
                                                                       cpu::Activation::none, {}});
}

}  // namespace

void bind_cpu_gather(nb::module_& m) {
  m.def("cpu_tile_plan", &cpu::tile_plan, "ids"_a, "num_experts"_a, "block_m"_a,
        "stream"_a = nb::none(),
        "[tile_expert, tile_row_start, tile_row_count, order, inverse, dropped] of a stable grouping by expert.");
  m.def("cpu_gather_mm", &gather_mm, "x"_a, "w"_a, "scales"_a.none(), "biases"_a.none(), "fmt"_a.none(), "transpose"_a, "out_dtype"_a,
        "lhs"_a.none(), "rhs"_a, "global_scale"_a = nb::none(), "bias"_a = nb::none(), "activation"_a = nb::none(),
        "plan"_a = nb::none(), "stream"_a = nb::none(),
        "activation(x[lhs] @ w[rhs] * global scale + bias[rhs]), grouped by expert; an id out of range gives zeros.");
  m.def("cpu_gather_gateup", &gather_gateup, "x"_a, "gate"_a, "up"_a, "fmt"_a.none(), "transpose"_a, "out_dtype"_a, "lhs"_a.none(),
        "rhs"_a, "global_scales"_a = nb::make_tuple(nb::none(), nb::none()), "activation"_a = nb::none(), "alpha"_a = 1.702f,
        "limit"_a = 7.0f, "plan"_a = nb::none(), "stream"_a = nb::none(),
        "Two projections of the same rows; each weight tuple is (w, scales, biases, bias). With an activation one joined result.");
  m.def("cpu_gather_combine", &gather_combine, "x"_a, "w"_a, "scales"_a.none(), "biases"_a.none(), "fmt"_a.none(), "transpose"_a,
        "out_dtype"_a, "rhs"_a, "scores"_a, "global_scale"_a = nb::none(), "bias"_a = nb::none(), "stream"_a = nb::none(),
        "Sum over k of scores[..., k] * (x[..., k, :] @ w[rhs[..., k]]), in that order; an id out of range contributes nothing.");
  m.def("cpu_gather_product", &gather_product, "fmt"_a.none(), "transpose"_a, "out_dtype"_a, "divisor"_a, "activation"_a.none(),
        "cpu_gather_mm of x, w, scales, biases, lhs, rhs, and the global scale as amax or prescaled, bias, each of these or None.");
  m.def("cpu_gateup_product", &gateup_product, "fmt"_a.none(), "transpose"_a, "out_dtype"_a, "divisor"_a, "activation"_a.none(), "alpha"_a, "limit"_a,
        "cpu_gather_gateup of x, both weights, lhs, rhs, and pairs of global scales as amax, as prescaled, of biases, each of these or None.");
  m.def("cpu_layer_product", &layer_product, "fmt"_a.none(), "down"_a.none(), "transpose"_a, "hidden"_a, "out_dtype"_a, "activation"_a, "alpha"_a,
        "limit"_a, "A layer of experts: gate and up, joined, then down, of x, three weights, indices, and scores or None.");
}

}  // namespace mlx_tensorops
