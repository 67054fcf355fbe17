#pragma once

#include <nanobind/nanobind.h>

namespace mlx_tensorops {

// Adds cpu_matmul, cpu_configure, cpu_info and cpu_read to the extension.
void bind_cpu(nanobind::module_& m);

// Adds the operations over experts; bind_cpu calls it.
void bind_cpu_gather(nanobind::module_& m);

}  // namespace mlx_tensorops
