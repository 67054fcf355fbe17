#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <variant>

#include "mlx/dtype.h"

namespace mlx_tensorops {

using DtypeOrName = std::variant<mlx::core::Dtype, std::string>;
mlx::core::Dtype dtype_of(const char* op, const DtypeOrName& given);

// Adds cpu_matmul, cpu_configure, cpu_info and cpu_read to the extension.
void bind_cpu(nanobind::module_& m);

// Adds the operations on quantised weights, and the counters; bind_cpu calls it.
void bind_cpu_quant(nanobind::module_& m);

// Adds the operations over experts; bind_cpu calls it.
void bind_cpu_gather(nanobind::module_& m);

// Adds WarmCalls and the class of products that it finds; bind_cpu calls it before those that make products.
void bind_cpu_warm(nanobind::module_& m);

}  // namespace mlx_tensorops
