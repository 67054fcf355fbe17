// The Python classes VariantSet and HostLauncher: handles that share the C++ object with graph nodes
// and take part in Python's cycle collection.
#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "callback.h"
#include "host_launcher.h"
#include "variant_set.h"

namespace mlx_tensorops {

template <typename T>
class Handle {
 public:
  Handle(std::shared_ptr<T> object, std::shared_ptr<Callback> callback)
      : object_(std::move(object)), callback_(std::move(callback)) {}

  std::shared_ptr<T> get() const {
    if (!object_) {
      throw std::runtime_error("this object was cleared by the garbage collector");
    }
    return object_;
  }

  // The callable belongs to this handle's cycle only while no graph node holds the object too.
  PyObject* sole_callable() const {
    return callback_ && object_.use_count() == 1 ? callback_->get() : nullptr;
  }

  void clear() {
    object_.reset();
    callback_.reset();
  }

 private:
  std::shared_ptr<T> object_;
  std::shared_ptr<Callback> callback_;
};

using VariantSetHandle = Handle<const VariantSet>;
using HostLauncherHandle = Handle<HostLauncher>;

void bind_handles(nanobind::module_& m);

}  // namespace mlx_tensorops
