// matmul2d with tensor operands (any mix with cooperative tensors): elements are read and written where the kernel's
// memory is, within the tensors' extents, by the last thread of the scope to arrive.
#pragma once
#include "hm_matmul.h"
#pragma clang system_header

namespace __hm {

// Row r and column c of the logical matrix; Swap: stored transposed.
template <bool Swap, class T> HM_FUNC bool inside(const thread T& t, long r, long c) {
  return (Swap ? r : c) < t.shape.values[0] && (Swap ? c : r) < t.shape.values[1];
}
template <bool Swap, class T> HM_FUNC long offset_of(const thread T& t, long r, long c) {
  return (Swap ? r : c) * t.stride[0] + (Swap ? c : r) * t.stride[1];
}

// Rows x Cols of the matrix from (r0, c0) on; what lies outside the extents is zero.
template <bool Swap, int Rows, int Cols, class T, class F>
HM_FUNC void read_window(thread F* dense, const thread T& t, long r0, long rows, long c0, long cols) {
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Cols; ++c)
      dense[r * Cols + c] = r < rows && c < cols && inside<Swap>(t, r0 + r, c0 + c)
                                ? static_cast<F>(element_value(t.data, offset_of<Swap>(t, r0 + r, c0 + c))) : F(0);
}
template <int Rows, int Cols, class T, class F>
HM_FUNC void write_window(const thread F* dense, const thread T& t) {
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Cols; ++c)
      if (inside<false>(t, r, c))
        t.data[offset_of<false>(t, r, c)] = static_cast<typename T::value_type>(dense[r * Cols + c]);
}

// All threads of a scope must pass the same tensors.
template <class X, class Op, thread X* Op::*Member>
HM_FUNC void check_uniform(void** slots, int threads, unsigned line) {
  if constexpr (is_tensor<X>::value) {
    const thread X& first = *(((thread Op*)slots[0])->*Member);
    for (int t = 1; t < threads; ++t) {
      const thread X& other = *(((thread Op*)slots[t])->*Member);
      bool equal = other.data == first.data;
      for (size_t i = 0; i < X::rank; ++i)
        equal = equal && other.shape.values[i] == first.shape.values[i] && other.stride[i] == first.stride[i];
      if (!equal) {
        __hm_finding(HM_FIND_ARGUMENT, line,
                     "matmul2d.run: threads of one execution scope pass different tensors (thread %ld)", t, 0);
        return;
      }
    }
  }
}

// Length of the inner dimension of a tensor operand, or -1 for a cooperative one.
template <int Dimension, class X> HM_FUNC long inner_extent(const thread X& x) {
  if constexpr (is_tensor<X>::value) return x.shape.values[Dimension];
  else return -1;
}

template <int K> HM_FUNC long inner_length(long left, long right, unsigned line) {
  if (K < 0) {
    if (left >= 0 && right >= 0 && left != right)
      __hm_finding(HM_FIND_ARGUMENT, line, "matmul2d.run: the operands' inner extents differ (%ld and %ld)", left, right);
    const long shared = left < 0 ? right : (right < 0 || left < right ? left : right);
    return shared < 0 ? 0 : shared;
  }
  const long least = left < 0 ? right : (right < 0 || left < right ? left : right);
  if (least >= 0 && least < K)
    __hm_finding(HM_FIND_EXTENT, line, "matmul2d.run: a static K of %ld reads past an inner extent of %ld", K, least);
  return K;
}

// Step: inner elements per round.
template <int M, int N, int K, bool SwapLeft, bool SwapRight, uint Window, class L, class R, class C>
HM_FUNC long multiply_tensors(void** slots, thread L& left, thread R& right, thread C& destination, int threads,
                              bool relaxed, bool accumulate, unsigned line) {
  constexpr bool lc = is_cooperative<L>::value, rc = is_cooperative<R>::value, dc = is_cooperative<C>::value;
  constexpr int step = K > 0 && (lc || rc || K <= 64) ? K : 32;
  using F = typename accumulator<metal::remove_cv_t<metal::remove_addrspace_t<typename C::element_type>>>::type;
  using A = metal::remove_cv_t<metal::remove_addrspace_t<typename L::element_type>>;
  using B = metal::remove_cv_t<metal::remove_addrspace_t<typename R::element_type>>;
  using Op = operands<L, R, C>;
  check_uniform<L, Op, &Op::left>(slots, threads, line);
  check_uniform<R, Op, &Op::right>(slots, threads, line);
  check_uniform<C, Op, &Op::destination>(slots, threads, line);
  const long length = inner_length<K>(inner_extent<(SwapLeft ? 1 : 0)>(left), inner_extent<(SwapRight ? 0 : 1)>(right), line);

  alignas(32) F a[M * step], b[step * N], c[M * N];
  opaque_access(Window);
  if constexpr (dc) {
    if (accumulate) gather_dense<false, N, C, F, Op, &Op::destination>(c, slots);
    else clear(c, M * N);
  } else {
    if (accumulate) read_window<false, M, N>(c, destination, 0, M, 0, N);
    else clear(c, M * N);
  }
  for (long k = 0; k < length; k += step) {
    const long now = length - k < step ? length - k : step;
    if constexpr (lc) gather_dense<SwapLeft, step, L, F, Op, &Op::left>(a, slots);
    else read_window<SwapLeft, M, step>(a, left, 0, M, k, now);
    if constexpr (rc) gather_dense<SwapRight, N, R, F, Op, &Op::right>(b, slots);
    else read_window<SwapRight, step, N>(b, right, k, now, 0, N);
    multiply_dense<M, N, step, A, B>(c, a, b, relaxed);
  }
  if constexpr (dc) scatter_dense<N, C, F, Op, &Op::destination>(c, slots);
  else write_window<M, N>(c, destination);
  plain_access();
  return length;
}

}  // namespace __hm
