#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "describe_python.h"
#include "handles.h"
#include "kernel_primitive.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "mlx/utils.h"
#include "recorder_encoder.h"
#include "split_primitive.h"
#include "trace.h"
#ifdef MLX_TENSOROPS_HAS_CPU_KERNELS
#include "cpu/bind.h"
#endif

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {
namespace {

// Found in the file without loading it: an extension built for another MLX does not load at all, and
// the message must still say which one it was built for. mlx_tensorops/primitives/_native.py reads it.
constexpr char kBuiltFor[] =
    "mlx_tensorops built for mlx=" MLX_TENSOROPS_MLX_VERSION
    " nanobind=" MLX_TENSOROPS_NANOBIND_VERSION ";";

std::shared_ptr<HostLauncher> launcher_of(HostLauncherHandle* handle) {
  return handle ? handle->get() : nullptr;
}

Arrays launch_list(const VariantSetHandle& variants, Arrays inputs, HostLauncherHandle* launcher,
                   mx::StreamOrDevice stream) {
  return launch(variants.get(), std::move(inputs), launcher_of(launcher), mx::to_stream(stream));
}

mx::array launch_pair(const VariantSetHandle& variants, const mx::array& a, const mx::array& b,
                      HostLauncherHandle* launcher, mx::StreamOrDevice stream) {
  return launch(variants.get(), {a, b}, launcher_of(launcher), mx::to_stream(stream))[0];
}

void make_split(Split* self, const std::string& op, int inputs, const std::vector<std::string>& sizes,
                const std::vector<std::pair<std::string, std::string>>& checks) {
  std::vector<Check> check_list;
  for (const auto& [program, message] : checks) {
    check_list.push_back({Rule(program), message});
  }
  new (self) Split(op, inputs, std::vector<Rule>(sizes.begin(), sizes.end()), std::move(check_list));
}

mx::array split_list(std::shared_ptr<Split> how, Arrays inputs, mx::StreamOrDevice stream) {
  return split(std::move(how), std::move(inputs), mx::to_stream(stream));
}

// Whether mx.compile(shapeless=True) is tracing. MLX does not export its own answer; its broadcast of several arrays shows it: then, and
// only then, the node keeps all of them as inputs, to broadcast again in a replay.
bool in_shapeless_trace() {
  return mx::broadcast_arrays({mx::array(0), mx::array({0, 0})})[0].inputs().size() > 1;
}

std::int64_t evaluate(const std::string& program, Arrays inputs) {
  const Rule rule(program);
  if (rule.reads_layout()) {
    nb::gil_scoped_release nogil;
    mx::eval(inputs);
  }
  return rule(inputs);
}

nb::dict record(const VariantSetHandle& handle, Arrays inputs) {
  const auto variants = handle.get();
  Arrays outputs;
  const auto shapes = variants->output_shapes(inputs);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    outputs.emplace_back(shapes[i], variants->outputs()[i].dtype, nullptr, Arrays{});
  }
  RecorderEncoder recorder;
  {
    nb::gil_scoped_release nogil;
    mx::eval(inputs);
    encode(*variants, inputs, outputs, recorder);
  }
  return describe(recorder);
}

nb::list trace_stop() {
  nb::list records;
  for (const auto& record : Trace::stop()) {
    records.append(describe(record));
  }
  return records;
}

}  // namespace
}  // namespace mlx_tensorops

NB_MODULE(_ext, m) {
  using namespace mlx_tensorops;
  // mx.array must be registered before any signature names it.
  nb::module_::import_("mlx.core");

  m.attr("built_for") = kBuiltFor;
  m.attr("mlx_version") = MLX_TENSOROPS_MLX_VERSION;
  m.attr("nanobind_version") = MLX_TENSOROPS_NANOBIND_VERSION;
  m.def("canary", [](const mx::array& array) { return array; }, "array"_a,
        "Return the argument. Fails when this extension and MLX do not share their types.");

  m.def("rule_vocabulary", &Rule::vocabulary, "Names of the rules' operators.");
  m.def("evaluate", &evaluate, "program"_a, "inputs"_a,
        "Value of a rule on arrays; evaluates them if the rule reads strides or addresses.");

  bind_handles(m);

  m.def("launch", &launch_list, "variant_set"_a, "inputs"_a, "launcher"_a.none(),
        "stream"_a.none() = nb::none(), "Add the operation to the graph; returns its outputs, unevaluated.");
  m.def("launch2", &launch_pair, "variant_set"_a, "a"_a, "b"_a, "launcher"_a.none(),
        "stream"_a.none() = nb::none(), "launch for two inputs and one output, without lists.");
  nb::class_<Split>(m, "Split", "Sizes that an array's first axis is split into: rules over the shapes of the inputs, of which it is the first.")
      .def("__init__", &make_split, "op"_a, "inputs"_a, "sizes"_a, "checks"_a);
  m.def("split", &split_list, "how"_a, "inputs"_a, "stream"_a.none() = nb::none(),
        "A view of the first input; a replayed shapeless graph gives the sizes of the inputs that it is given.");
  m.def("in_shapeless_trace", &in_shapeless_trace, "Whether mx.compile(shapeless=True) is tracing on this thread.");
  m.def("record", &record, "variant_set"_a, "inputs"_a,
        "Evaluate the inputs and say what would be launched; launches nothing.");

  m.def("trace_start", &Trace::start, "capacity"_a,
        "Record launches from now on; keep the last `capacity`.");
  m.def("trace_stop", &trace_stop, "Stop recording; returns the records.");

#ifdef MLX_TENSOROPS_HAS_CPU_KERNELS
  bind_cpu(m);
#endif
}
