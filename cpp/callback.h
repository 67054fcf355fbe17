// A Python callable that C++ owns and calls from evaluation, where the GIL may not be held.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>

namespace mlx_tensorops {

class Callback {
 public:
  // Shared, because std::function copies what it holds and each copy would need the GIL.
  static std::shared_ptr<Callback> make(nanobind::object callable) {
    if (!PyCallable_Check(callable.ptr())) {
      throw nanobind::type_error("expected a callable");
    }
    return std::make_shared<Callback>(std::move(callable));
  }

  explicit Callback(nanobind::object callable) : callable_(std::move(callable)) {}

  ~Callback() {
    if (nanobind::is_alive()) {
      nanobind::gil_scoped_acquire gil;
      callable_.reset();
    } else {
      callable_.release();  // the interpreter that owns it is gone
    }
  }

  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  PyObject* get() const { return callable_.ptr(); }

  // Calls use(callable) under the GIL. A Python exception crosses MLX as a C++ one, because nanobind's
  // own exception type is private to each extension: ValueErrors stay ValueErrors, the rest become
  // RuntimeErrors, both with the original text.
  template <typename Use>
  auto call(const std::string& context, Use use) const {
    nanobind::gil_scoped_acquire gil;
    try {
      return use(callable_);
    } catch (nanobind::python_error& error) {
      const std::string text = nanobind::str(error.value()).c_str();
      const std::string type = nanobind::str(error.type().attr("__name__")).c_str();
      if (error.matches(PyExc_ValueError)) {
        throw std::invalid_argument(context + text);
      }
      if (error.matches(PyExc_KeyboardInterrupt)) {
        PyErr_SetInterrupt();  // whoever pressed Ctrl-C wants more than a RuntimeError: it is raised again after that
      }
      throw std::runtime_error(context + type + ": " + text);
    }
  }

 private:
  nanobind::object callable_;
};

}  // namespace mlx_tensorops
