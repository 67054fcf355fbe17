// What MLX puts in front of the source of mx.fast.metal_kernel, as far as bodies use it: element type names,
// limits and index helpers.
#pragma once
#include <metal_stdlib>
#pragma clang system_header
using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

template <class U> struct Limits {
  static constexpr constant U max = numeric_limits<U>::max();
  static constexpr constant U min = numeric_limits<U>::lowest();
  static constexpr constant U finite_max = numeric_limits<U>::max();
  static constexpr constant U finite_min = numeric_limits<U>::lowest();
};

// Offset in elements of the row-major element number `elem`.
template <class IdxT = int64_t>
HM_FUNC IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  IdxT location = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    location += elem % shape[i] * static_cast<IdxT>(strides[i]);
    elem /= shape[i];
  }
  return location;
}
template <class T, class U> HM_FUNC T ceildiv(T n, U m) { return (n + m - 1) / m; }
