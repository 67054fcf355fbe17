#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "tile_plan.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {

void bind_cpu_gather(nb::module_& m) {
  m.def("cpu_tile_plan", &cpu::tile_plan, "ids"_a, "num_experts"_a, "block_m"_a,
        "stream"_a = nb::none(),
        "[tile_expert, tile_row_start, tile_row_count, order, inverse, dropped] of a stable grouping by expert.");
}

}  // namespace mlx_tensorops
