// Calls of Python that were resolved to a native product, found again without a frame of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "product.h"

namespace mlx_tensorops {

// A call is (types and ranks of its arrays, its words, the context variables). No size is part of it, and no value of an array.
class WarmCalls {
 public:
  // `context`: a list of ContextVars, which may grow.
  explicit WarmCalls(nanobind::list context);

  // The node's results, where such a call was learned and its arrays fit; else None. Tuples and lists of arrays count as their items.
  nanobind::object call(nanobind::handle stream, nanobind::tuple arrays, nanobind::tuple words) const;
  // Nothing happens where the arrays are no arrays, or the words no words, numbers or types.
  void learn(nanobind::tuple arrays, nanobind::tuple words, std::shared_ptr<cpu::Prepared> product);
  void clear() { known_.clear(); }
  std::size_t size() const { return known_.size(); }

 private:
  static constexpr std::size_t kArrays = 24, kWords = 16, kContext = 4;

  struct Key {
    std::array<uint16_t, kArrays + kWords> codes;  // of the arrays, and of words that are types
    std::array<PyObject*, kWords + kContext> objects;
    std::size_t code_count = 0, object_count = 0, hash = 0;

    bool operator==(const Key&) const;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.hash; }
  };
  struct Known {
    std::shared_ptr<cpu::Prepared> product;
    std::vector<nanobind::object> alive;  // what the key's objects are
  };
  struct Arguments {
    std::array<const mlx::core::array*, kArrays> arrays;
    std::array<cpu::Argument, kArrays> list;
    std::size_t array_count = 0, count = 0;
  };

  // False: such a call is never warm.
  bool describe(PyObject* arrays, PyObject* words, Key& key, Arguments& found) const;
  bool add(PyObject* item, Key& key, Arguments& found) const;

  nanobind::list context_;
  nanobind::str get_{"get"};
  PyObject *array_type_, *dtype_type_;
  std::unordered_map<Key, Known, Hash> known_;
};

}  // namespace mlx_tensorops
