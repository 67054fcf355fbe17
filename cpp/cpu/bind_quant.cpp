#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "counters.h"
#include "matmul.h"
#include "product.h"
#include "qmm.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {
namespace {

mx::array cpu_qmm(const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
                  const cpu::NativeFormat& fmt, bool transpose, const DtypeOrName& out_dtype, const cpu::GlobalScale& global_scale,
                  const std::optional<mx::array>& bias, const std::optional<std::string>& activation,
                  const std::optional<mx::array>& residual, mx::StreamOrDevice stream) {
  return cpu::quantized_matmul(x, w, scales, biases, cpu::format_of("cpu_qmm", fmt), transpose, dtype_of("cpu_qmm", out_dtype), global_scale,
                               bias, cpu::activation_of(activation.value_or("")), residual, stream);
}

std::shared_ptr<cpu::Prepared> qmm_product(const cpu::NativeFormat& fmt, bool transpose, const DtypeOrName& out_dtype, float divisor,
                                          const std::optional<std::string>& activation) {
  return std::make_shared<cpu::QuantizedProduct>(cpu::format_of("cpu_qmm", fmt), transpose, dtype_of("cpu_qmm", out_dtype), divisor,
                                                 cpu::activation_of(activation.value_or("")));
}

nb::dict cpu_counters() {
  const cpu::Counters& all = cpu::counters();
  nb::dict result;
  result["weights_decoded"] = all.weights_decoded.load();
  result["panels"] = all.panels.load();
  result["scratch_bytes_per_thread"] = all.scratch_bytes.load();
  result["x_packed"] = all.x_packed.load();
  return result;
}

}  // namespace

void bind_cpu_quant(nb::module_& m) {
  m.def("cpu_qmm", &cpu_qmm, "x"_a, "w"_a, "scales"_a, "biases"_a.none(), "fmt"_a, "transpose"_a, "out_dtype"_a,
        "global_scale"_a = nb::none(), "bias"_a = nb::none(), "activation"_a = nb::none(), "residual"_a = nb::none(),
        "stream"_a = nb::none(),
        "act((x @ weights) * global scale + bias) + residual on a CPU stream, summed in f32 and rounded once. fmt is "
        "(codes, bits, group, scale, values); global_scale is (array, divisor).");
  m.def("cpu_qmm_product", &qmm_product, "fmt"_a, "transpose"_a, "out_dtype"_a, "divisor"_a, "activation"_a.none(),
        "cpu_qmm of x, w, scales, biases, and the global scale as amax or prescaled, bias, residual, each of these or None.");
  m.def("cpu_counters", &cpu_counters, "What quantised and gathered products have done since cpu_counters_reset().");
  m.def("cpu_counters_reset", [] { cpu::counters().reset(); });
}

}  // namespace mlx_tensorops
