#include "handles.h"

#include <tuple>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace mlx_tensorops {
namespace {

using OutputSpec = std::pair<std::string, std::vector<std::string>>;
using CheckSpec = std::pair<std::string, std::string>;

std::vector<Rule> rules(const std::vector<std::string>& programs) {
  return std::vector<Rule>(programs.begin(), programs.end());
}

mx::Dtype dtype(const std::string& name) {
  static const std::pair<const char*, mx::Dtype> table[] = {
      {"bool", mx::bool_},        {"uint8", mx::uint8},       {"uint16", mx::uint16},
      {"uint32", mx::uint32},     {"uint64", mx::uint64},     {"int8", mx::int8},
      {"int16", mx::int16},       {"int32", mx::int32},       {"int64", mx::int64},
      {"float16", mx::float16},   {"bfloat16", mx::bfloat16}, {"float32", mx::float32},
      {"complex64", mx::complex64}};
  for (const auto& [key, value] : table) {
    if (name == key) {
      return value;
    }
  }
  throw std::invalid_argument("dtype '" + name + "' is not one that a Metal kernel can write");
}

template <typename T>
T field(const nb::dict& row, const char* key) {
  T value;
  if (!row.contains(key) || !nb::try_cast(row[key], value)) {
    throw std::invalid_argument(std::string("row: '") + key + "' is missing or of the wrong type");
  }
  return value;
}

Binding binding(const nb::tuple& spec) {
  std::string kind;
  std::string format;
  std::vector<std::string> programs;
  int argument = 0;
  if (spec.size() == 3 && nb::try_cast(spec[0], kind) && kind == "scalars" &&
      nb::try_cast(spec[1], format) && nb::try_cast(spec[2], programs)) {
    return {Binding::Kind::kScalars, 0, {format, rules(programs)}};
  }
  if (spec.size() == 2 && nb::try_cast(spec[0], kind) && nb::try_cast(spec[1], argument)) {
    if (kind == "input") {
      return {Binding::Kind::kInput, argument, {}};
    }
    if (kind == "optional") {
      return {Binding::Kind::kInput, argument, {}, true};
    }
    if (kind == "output") {
      return {Binding::Kind::kOutput, argument, {}};
    }
  }
  throw std::invalid_argument(
      std::string("binding ") + nb::repr(spec).c_str() +
      " is not ('input', i), ('optional', i), ('output', i) or ('scalars', format, [rules])");
}

Row row(const nb::dict& spec) {
  using Threads = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  const auto [x, y, z] = field<std::tuple<std::string, std::string, std::string>>(spec, "grid");
  const auto [tx, ty, tz] = field<Threads>(spec, "threads");
  Row row{field<std::string>(spec, "key"),
          Rule(field<std::string>(spec, "when")),
          field<std::string>(spec, "kernel"),
          field<std::string>(spec, "source"),
          {},
          {Rule(x), Rule(y), Rule(z)},
          {tx, ty, tz},
          field<std::vector<std::uint32_t>>(spec, "threadgroup_args"),
          {}};
  for (const auto& item : field<std::vector<nb::tuple>>(spec, "bindings")) {
    row.bindings.push_back(binding(item));
  }
  return row;
}

Vjp vjp_through(std::shared_ptr<Callback> callback, const std::string& op) {
  if (!callback) {
    return nullptr;
  }
  return [callback, context = "[" + op + "] gradient: "](
             const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums) {
    return callback->call(context, [&](const nb::object& function) {
      const auto result = function(primals, cotangents, argnums);
      Arrays gradients;
      if (!nb::try_cast(result, gradients) || gradients.size() != argnums.size()) {
        throw std::runtime_error(
            context + "expected a list of " + std::to_string(argnums.size()) + " arrays, one per argnum");
      }
      return gradients;
    });
  };
}

std::vector<Check> check_list(const std::vector<CheckSpec>& specs) {
  std::vector<Check> list;
  for (const auto& [program, message] : specs) {
    list.push_back({Rule(program), message});
  }
  return list;
}

void make_variant_set(VariantSetHandle* self, const std::string& op, int inputs,
                      const std::vector<OutputSpec>& outputs, const std::vector<CheckSpec>& checks,
                      const std::vector<nb::dict>& rows, nb::object vjp,
                      const std::vector<CheckSpec>& layouts) {
  std::vector<Output> output_list;
  for (const auto& [name, shape] : outputs) {
    output_list.push_back({dtype(name), rules(shape)});
  }
  std::vector<Row> row_list;
  for (const auto& spec : rows) {
    row_list.push_back(row(spec));
  }
  auto callback = vjp.is_none() ? nullptr : Callback::make(std::move(vjp));
  auto set = std::make_shared<const VariantSet>(op, inputs, std::move(output_list),
                                                check_list(checks), std::move(row_list),
                                                vjp_through(callback, op), check_list(layouts));
  new (self) VariantSetHandle(std::move(set), std::move(callback));
}

void make_launcher(HostLauncherHandle* self, std::uintptr_t dispatch, nb::bytes options,
                   nb::object prepare) {
  auto callback = Callback::make(std::move(prepare));
  auto through = [callback](const std::string& source, const std::string& kernel) {
    const auto context = "preparing kernel " + kernel + ": ";
    return callback->call(context, [&](const nb::object& function) {
      std::uintptr_t address = 0;
      if (!nb::try_cast(function(source, kernel), address) || address == 0) {
        throw std::runtime_error(context + "expected the address of its entry point");
      }
      return address;
    });
  };
  auto launcher = std::make_shared<HostLauncher>(
      dispatch, std::string_view(options.c_str(), options.size()), std::move(through));
  new (self) HostLauncherHandle(std::move(launcher), std::move(callback));
}

template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) {
    Py_VISIT(nb::inst_ptr<Handle<T>>(self)->sole_callable());
  }
  return 0;
}

template <typename T>
int clear(PyObject* self) {
  nb::inst_ptr<Handle<T>>(self)->clear();
  return 0;
}

template <typename T>
PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                       {0, nullptr}};

}  // namespace

void bind_handles(nb::module_& m) {
  nb::class_<VariantSetHandle>(m, "VariantSet", nb::type_slots(slots<const VariantSet>),
                               "Every kernel one operation may need; immutable, compared by identity.")
      .def("__init__", &make_variant_set, "op"_a, "inputs"_a, "outputs"_a, "checks"_a, "rows"_a,
           "vjp"_a.none() = nb::none(), "layouts"_a = std::vector<CheckSpec>{})
      .def_prop_ro("op", [](const VariantSetHandle& self) { return self.get()->op(); })
      .def_prop_ro("keys", [](const VariantSetHandle& self) {
        std::vector<std::string> keys;
        for (const auto& row : self.get()->rows()) {
          keys.push_back(row.key);
        }
        return keys;
      });
  nb::class_<HostLauncherHandle>(m, "HostLauncher", nb::type_slots(slots<HostLauncher>),
                                 "The emulator: its dispatch, options, and how to compile a kernel.")
      .def("__init__", &make_launcher, "dispatch_address"_a, "options"_a, "prepare"_a);
}

}  // namespace mlx_tensorops
