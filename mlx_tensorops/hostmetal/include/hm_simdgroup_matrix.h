// <metal_simdgroup_matrix>: 8x8 matrices spread over a simdgroup, two neighbouring elements of a row in each thread.
//
// thread_elements() and the lane map are undocumented, but MLX relies on both (steel/gemm/mma.h).
#pragma once
#include "hm_matmul.h"
#pragma clang system_header

namespace metal {

template <class T, int Cols, int Rows = Cols> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  static_assert(__hm::same<T, half>::value || __hm::same<T, bfloat>::value || __hm::same<T, float>::value,
                "simdgroup_matrix holds half, bfloat or float");
  using storage_type = vec<T, 2>;
  storage_type elements;

  simdgroup_matrix() = default;
  HM_FUNC explicit simdgroup_matrix(T diagonal);
  HM_FUNC thread storage_type& thread_elements() thread { return elements; }
  HM_FUNC const thread storage_type& thread_elements() const thread { return elements; }
};

typedef simdgroup_matrix<half, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float, 8> simdgroup_float8x8;

}  // namespace metal

namespace __hm {

HM_FUNC constexpr int matrix_row(uint lane) { return (lane >> 2 & 4) | (lane >> 1 & 3); }
HM_FUNC constexpr int matrix_column(uint lane) { return (lane >> 2 & 2) * 2 + (lane & 1) * 2; }

template <class D, class A, class B, class C> struct matrix_operands {
  thread metal::vec<D, 2>* d;
  const thread metal::vec<A, 2>* a;
  const thread metal::vec<B, 2>* b;
  const thread metal::vec<C, 2>* c;  // null: no addend
};

template <class D, class A, class B, class C>
HM_DENSE void multiply_matrices(void** slots) {
  using Op = matrix_operands<D, A, B, C>;
  alignas(32) float a[64], b[64], c[64];
  for (uint lane = 0; lane < 32; ++lane) {
    const thread Op& o = *(thread Op*)slots[lane];
    const int at = matrix_row(lane) * 8 + matrix_column(lane);
    for (int e = 0; e < 2; ++e) {
      a[at + e] = static_cast<float>(o.a->d[e]);
      b[at + e] = static_cast<float>(o.b->d[e]);
      c[at + e] = o.c ? static_cast<float>(o.c->d[e]) : 0.0f;
    }
  }
  degrade<A>(a, 64, false);
  degrade<B>(b, 64, false);
  multiply<8, 8, 8>(c, a, b);
  for (uint lane = 0; lane < 32; ++lane) {
    const thread Op& o = *(thread Op*)slots[lane];
    const int at = matrix_row(lane) * 8 + matrix_column(lane);
    for (int e = 0; e < 2; ++e) o.d->d[e] = static_cast<D>(c[at + e]);
  }
}

template <class D, class A, class B, class C>
HM_FUNC void multiply_matrices(HM_TEXT name, matrix_operands<D, A, B, C> given, unsigned line) {
  own_access();
  matrix_operands<D, A, B, C> mine = given;
  if (__hm_arrive(HM_SIMDGROUP | HM_WHOLE(1), name, line, &mine)) {
    multiply_matrices<D, A, B, C>(__hm_slots);
    __hm_count(HM_COUNT_MMA8X8, 1);
    __hm_count(HM_COUNT_MACS, 512);
    __hm_release(HM_SIMDGROUP | HM_WHOLE(1));
  }
}

// All threads of the simdgroup must take part, though each moves its own elements.
HM_FUNC void meet(HM_TEXT name, unsigned line) {
  int unused;
  if (__hm_arrive(HM_SIMDGROUP | HM_WHOLE(1), name, line, &unused)) __hm_release(HM_SIMDGROUP | HM_WHOLE(1));
}
template <class T, class P>
HM_FUNC void load_matrix(thread metal::vec<T, 2>& m, P p, ulong width, metal::ulong2 origin, bool transpose) {
  const int row = matrix_row(__hm_cur->lane), column = matrix_column(__hm_cur->lane);
  for (int e = 0; e < 2; ++e) {
    const ulong x = origin.x + (transpose ? row : column + e), y = origin.y + (transpose ? column + e : row);
    m.d[e] = p[y * width + x];
  }
}
template <class T, class P>
HM_FUNC void store_matrix(metal::vec<T, 2> m, P p, ulong width, metal::ulong2 origin, bool transpose) {
  const int row = matrix_row(__hm_cur->lane), column = matrix_column(__hm_cur->lane);
  for (int e = 0; e < 2; ++e) {
    const ulong x = origin.x + (transpose ? row : column + e), y = origin.y + (transpose ? column + e : row);
    p[y * width + x] = m.d[e];
  }
}

}  // namespace __hm

namespace metal {

// The scalar constructor makes a diagonal matrix; make_filled_simdgroup_matrix fills all elements.
template <class T, int Cols, int Rows>
HM_FUNC simdgroup_matrix<T, Cols, Rows>::simdgroup_matrix(T diagonal) : elements(static_cast<T>(0)) {
  const int row = __hm::matrix_row(__hm_cur->lane), column = __hm::matrix_column(__hm_cur->lane);
  if (row == column) elements.d[0] = diagonal;
  if (row == column + 1) elements.d[1] = diagonal;
}
template <class T, int Cols, int Rows = Cols>
HM_FUNC simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> m;
  m.elements = vec<T, 2>(value);
  return m;
}
template <class T, int Cols, int Rows = Cols>
HM_FUNC simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Cols, Rows>(value);
}

#define HM_MATRIX_MEMORY(space)                                                                              \
  template <class T>                                                                                         \
  HM_FUNC void simdgroup_load(thread simdgroup_matrix<T, 8>& d, const space T* src, ulong elements_per_row = 8, \
                              ulong2 origin = ulong2(0), bool transpose = false, unsigned line = __builtin_LINE()) { \
    __hm::meet("simdgroup_load", line);                                                                      \
    __hm::load_matrix(d.elements, src, elements_per_row, origin, transpose);                                 \
  }                                                                                                          \
  template <class T>                                                                                         \
  HM_FUNC void simdgroup_store(simdgroup_matrix<T, 8> a, space T* dst, ulong elements_per_row = 8,           \
                               ulong2 origin = ulong2(0), bool transpose = false, unsigned line = __builtin_LINE()) { \
    __hm::meet("simdgroup_store", line);                                                                     \
    __hm::store_matrix(a.elements, dst, elements_per_row, origin, transpose);                                \
  }
HM_MATRIX_MEMORY(device)
HM_MATRIX_MEMORY(threadgroup)
#undef HM_MATRIX_MEMORY

template <class D, class A, class B>
HM_FUNC void simdgroup_multiply(thread simdgroup_matrix<D, 8>& d, const thread simdgroup_matrix<A, 8>& a,
                                const thread simdgroup_matrix<B, 8>& b, unsigned line = __builtin_LINE()) {
  __hm::multiply_matrices<D, A, B, D>("simdgroup_multiply", {&d.elements, &a.elements, &b.elements, nullptr}, line);
}
template <class D, class A, class B, class C>
HM_FUNC void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8>& d, const thread simdgroup_matrix<A, 8>& a,
                                           const thread simdgroup_matrix<B, 8>& b,
                                           const thread simdgroup_matrix<C, 8>& c, unsigned line = __builtin_LINE()) {
  __hm::multiply_matrices<D, A, B, C>("simdgroup_multiply_accumulate",
                                      {&d.elements, &a.elements, &b.elements, &c.elements}, line);
}
template <class T>
HM_FUNC simdgroup_matrix<T, 8> operator*(simdgroup_matrix<T, 8> a, simdgroup_matrix<T, 8> b) {
  simdgroup_matrix<T, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

}  // namespace metal
