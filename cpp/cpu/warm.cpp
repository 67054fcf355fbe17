#include "warm.h"

#include <nanobind/stl/variant.h>

#include <algorithm>

#include "mlx/utils.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace mlx_tensorops {
namespace {

constexpr std::size_t kMostCalls = 4096;  // then all are forgotten: someone makes words of values
constexpr Py_ssize_t kMostItems = 3;     // w, scales, biases
constexpr uint16_t kNone = 0, kArray = 0x1000, kGroup = 0x2000, kType = 0x3000;

uint16_t code_of(mx::Dtype type) {
  return static_cast<uint16_t>(type.val());
}

bool same_word(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;  // 1 is not True
  if (PyUnicode_CheckExact(a)) return PyUnicode_Compare(a, b) == 0;
  return PyLong_CheckExact(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

bool stream_of(nb::handle given, mx::Stream& stream) {
  if (given.is_none()) {
    stream = mx::default_stream(mx::default_device());
  } else {
    mx::StreamOrDevice where;
    if (PyLong_Check(given.ptr()) || !nb::try_cast(given, where)) return false;  // a number casts to a device, and names none
    stream = mx::to_stream(where);
  }
  return stream.device == mx::Device::cpu;
}

}  // namespace

bool WarmCalls::Key::operator==(const Key& o) const {
  return hash == o.hash && code_count == o.code_count && object_count == o.object_count &&
         std::equal(codes.begin(), codes.begin() + code_count, o.codes.begin()) &&
         std::equal(objects.begin(), objects.begin() + object_count, o.objects.begin(), same_word);
}

WarmCalls::WarmCalls(nb::list context)
    : context_(std::move(context)), array_type_(nb::type<mx::array>().ptr()), dtype_type_(nb::type<mx::Dtype>().ptr()) {}

// One array or None.
bool WarmCalls::add(PyObject* item, Key& key, Arguments& found) const {
  if (key.code_count == kArrays) return false;
  const mx::array* array = nullptr;
  uint16_t code = kNone;
  if (reinterpret_cast<PyObject*>(Py_TYPE(item)) == array_type_) {
    array = nb::inst_ptr<mx::array>(item);
    if (array->ndim() > 0xff) return false;
    code = kArray | code_of(array->dtype()) << 8 | static_cast<uint16_t>(array->ndim());
  } else if (item != Py_None) {
    return false;
  }
  key.codes[key.code_count++] = code;
  found.arrays[found.array_count++] = array;
  return true;
}

bool WarmCalls::describe(PyObject* arrays, PyObject* words, Key& key, Arguments& found) const {
  const Py_ssize_t arguments = PyTuple_GET_SIZE(arrays);
  for (Py_ssize_t i = 0; i < arguments; i++) {
    PyObject* item = PyTuple_GET_ITEM(arrays, i);
    const auto first = found.arrays.data() + found.array_count;
    Py_ssize_t count = 1;
    if (PyTuple_Check(item) || PyList_Check(item)) {
      if (key.code_count == kArrays) return false;
      count = PySequence_Fast_GET_SIZE(item);
      if (count > kMostItems) return false;
      key.codes[key.code_count++] = kGroup | static_cast<uint16_t>(count);
      for (Py_ssize_t j = 0; j < count; j++)
        if (!add(PySequence_Fast_GET_ITEM(item, j), key, found)) return false;
    } else if (!add(item, key, found)) {
      return false;
    }
    found.list[found.count++] = {first, static_cast<std::size_t>(count)};
  }
  const Py_ssize_t size = PyTuple_GET_SIZE(words);
  if (size > static_cast<Py_ssize_t>(kWords)) return false;
  std::size_t hash = key.code_count;
  const auto mix = [&](std::size_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29; };
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* word = PyTuple_GET_ITEM(words, i);
    if (reinterpret_cast<PyObject*>(Py_TYPE(word)) == dtype_type_) {  // each read of a dtype makes another object
      key.codes[key.code_count++] = kType | static_cast<uint16_t>(i << 4) | code_of(*nb::inst_ptr<mx::Dtype>(word));
      word = Py_None;
    }
    key.objects[key.object_count++] = word;
    if (PyUnicode_CheckExact(word) || PyLong_CheckExact(word)) mix(static_cast<std::size_t>(PyObject_Hash(word)));
    else if (word == Py_None || word == Py_True || word == Py_False) mix(reinterpret_cast<std::size_t>(word));
    else return false;
  }
  for (std::size_t i = 0; i < key.code_count; i++) mix(key.codes[i]);
  const Py_ssize_t variables = PyList_GET_SIZE(context_.ptr());
  if (variables > static_cast<Py_ssize_t>(kContext)) return false;
  for (Py_ssize_t i = 0; i < variables; i++) {
    // By its method: the C function is not among the symbols that nanobind lets an extension for macOS leave open.
    const nb::object value = nb::handle(PyList_GET_ITEM(context_.ptr(), i)).attr(get_)(nb::none());
    key.objects[key.object_count++] = value.ptr();  // the context holds it
    mix(reinterpret_cast<std::size_t>(value.ptr()));
  }
  key.hash = hash;
  return true;
}

nb::object WarmCalls::call(nb::handle given, nb::tuple arrays, nb::tuple words) const {
  Key key;
  Arguments found;
  if (!describe(arrays.ptr(), words.ptr(), key, found)) return nb::none();
  const auto known = known_.find(key);
  mx::Stream stream(0, mx::Device::cpu);
  if (known == known_.end() || !stream_of(given, stream)) return nb::none();
  std::vector<mx::array> results = (*known->second.product)(found.list.data(), found.count, stream);
  if (results.empty()) return nb::none();
  if (results.size() == 1) return nb::cast(std::move(results[0]));
  nb::list list;
  for (mx::array& result : results) list.append(nb::cast(std::move(result)));
  return list;
}

void WarmCalls::learn(nb::tuple arrays, nb::tuple words, std::shared_ptr<cpu::Prepared> product) {
  Key key;
  Arguments found;
  if (!describe(arrays.ptr(), words.ptr(), key, found)) return;
  if (known_.size() >= kMostCalls) known_.clear();
  Known& known = known_[key];
  known.product = std::move(product);
  if (!known.alive.empty()) return;  // of an equal key, which stays
  for (std::size_t i = 0; i < key.object_count; i++) known.alive.push_back(nb::borrow(key.objects[i]));
}

}  // namespace mlx_tensorops
