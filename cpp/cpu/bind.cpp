#include "bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "blas.h"
#include "config.h"
#include "matmul.h"
#include "pool.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {

mx::Dtype dtype_of(const char* op, const DtypeOrName& given) {
  if (auto type = std::get_if<mx::Dtype>(&given)) return *type;
  const std::string& name = std::get<std::string>(given);
  if (name == "float32") return mx::float32;
  if (name == "float16") return mx::float16;
  if (name == "bfloat16") return mx::bfloat16;
  throw std::invalid_argument("[" + std::string(op) + "] out_dtype = '" + name +
                              "', but must be float32, float16 or bfloat16");
}

namespace {

mx::array cpu_matmul(const mx::array& a, const mx::array& b,
                     const std::optional<DtypeOrName>& out_dtype,
                     const std::optional<mx::array>& bias,
                     const std::optional<std::string>& activation,
                     const std::optional<mx::array>& residual, mx::StreamOrDevice stream) {
  mx::Dtype type = out_dtype ? dtype_of("cpu_matmul", *out_dtype) : mx::result_type(a, b);
  return cpu::matmul(a, b, type, bias, cpu::activation_of(activation.value_or("")), residual,
                     stream);
}

void cpu_configure(std::optional<int> threads, const std::optional<std::string>& openblas_path,
                   const std::optional<std::string>& instruction_set,
                   const std::optional<std::string>& blas) {
  if (threads) cpu::set_threads(*threads);
  if (openblas_path) cpu::set_openblas_path(*openblas_path);
  if (instruction_set) cpu::set_instruction_set(*instruction_set);
  if (blas) cpu::set_use_blas(*blas);
}

nb::dict cpu_info() {
  cpu::Settings settings = cpu::settings();
  std::vector<std::string> usable;
  for (const cpu::Kernels* k : cpu::usable_kernels()) usable.push_back(k->name);
  const cpu::Blas& blas = cpu::blas();
  nb::dict info;
  info["instruction_set"] = settings.kernels->name;
  info["usable_instruction_sets"] = usable;
  info["threads"] = settings.threads;
  info["worker_threads"] = cpu::worker_threads();
  info["blas"] = blas.sgemm ? nb::object(nb::str(blas.about.c_str())) : nb::object(nb::none());
  info["blas_reason"] = blas.sgemm ? "" : blas.about;
  info["blas_use"] = cpu::use_blas_name();
  info["scratch_bytes_per_thread"] = cpu::scratch_limit();
  return info;
}

uint64_t cpu_read(mx::array array) {
  array.eval();
  const int64_t bytes = static_cast<int64_t>(array.data_size() * array.itemsize());
  nb::gil_scoped_release release;
  return cpu::settings().kernels->read(array.data<char>(), bytes);
}

}  // namespace

void bind_cpu(nb::module_& m) {
  m.def("cpu_matmul", &cpu_matmul, "a"_a, "b"_a, "out_dtype"_a = nb::none(),
        "bias"_a = nb::none(), "activation"_a = nb::none(), "residual"_a = nb::none(),
        "stream"_a = nb::none(),
        "act(a @ b + bias) + residual on a CPU stream, summed in f32 and rounded once.");
  m.def("cpu_configure", &cpu_configure, "threads"_a = nb::none(),
        "openblas_path"_a = nb::none(), "instruction_set"_a = nb::none(), "blas"_a = nb::none(),
        "Change what the CPU engine runs with; None leaves a setting as it is.");
  m.def("cpu_info", &cpu_info, "What the CPU engine runs with. Opens the BLAS.");
  m.def("cpu_read", &cpu_read, "array"_a,
        "Read the bytes of an array once, as fast as one thread can: the yardstick of benchmarks.");
  bind_cpu_warm(m);
  bind_cpu_quant(m);
  bind_cpu_gather(m);
}

}  // namespace mlx_tensorops
