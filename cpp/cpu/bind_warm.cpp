#include <nanobind/stl/shared_ptr.h>

#include "bind.h"
#include "warm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mlx_tensorops {

void bind_cpu_warm(nb::module_& m) {
  nb::class_<cpu::Prepared>(m, "CpuProduct", "A product with everything decided but its arrays and the stream.");
  nb::class_<WarmCalls>(m, "WarmCalls", "Calls found again by the types and ranks of their arrays, their words and context variables.")
      .def(nb::init<nb::list>(), "context"_a)
      .def("call", &WarmCalls::call, "stream"_a.none(), "arrays"_a, "words"_a, "The node's results, or None where no such call was learned or its arrays do not fit.")
      .def("learn", &WarmCalls::learn, "arrays"_a, "words"_a, "product"_a)
      .def("clear", &WarmCalls::clear)
      .def("__len__", &WarmCalls::size);
}

}  // namespace mlx_tensorops
