// uniform<T>: a value that the author declares equal in all threads.
#pragma once
#include "hm_vec.h"
#pragma clang system_header

namespace metal {

template <class T> struct uniform {
  T value;
  uniform() = default;
  HM_FUNC constexpr uniform(T v) : value(v) {}
  HM_FUNC constexpr operator T() const { return value; }
};
template <class T> HM_FUNC constexpr uniform<T> make_uniform(T v) { return uniform<T>(v); }

}  // namespace metal
