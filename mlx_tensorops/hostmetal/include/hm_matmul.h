// The work of one matmul2d, done by the last thread of the scope to arrive: bring the operands into dense matrices,
// multiply, hand the destination back.
#pragma once
#include "hm_coop.h"
#pragma clang system_header

namespace __hm {

// Not instrumented in the checked build: dense matrices on one stack, and elements whose accesses the owning threads
// report themselves.
#define HM_DENSE __attribute__((noinline, nodebug, no_sanitize("thread")))

template <class T> struct accumulator { using type = float; };
template <> struct accumulator<int> { using type = int; };

// Operands as the hardware may read them; the switches exist for float and half alone.
template <class T, class F> HM_FUNC void degrade(thread F* x, int n, bool relaxed) {
  if constexpr (same<T, float>::value) {
    if (relaxed && (__hm_flags & HM_RT_TRUNCATE_F32))  // 11 significant bits: 10 stored ones stay
      for (int i = 0; i < n; ++i)
        x[i] = __builtin_bit_cast(float, __builtin_bit_cast(uint, x[i]) & 0xffffe000u);
  } else if constexpr (same<T, half>::value) {
    if (__hm_flags & HM_RT_FLUSH_HALF)
      for (int i = 0; i < n; ++i)
        if (__builtin_fabsf(x[i]) < 6.103515625e-5f) x[i] = __builtin_copysignf(0.0f, x[i]);
  }
}

// dense[row * Cols + col] of the logical matrix; Swap: the tile is stored transposed.
template <bool Swap, int Cols> HM_FUNC int place(uint packed) {
  const int column = packed & 0xffff, row = packed >> 16;
  return Swap ? column * Cols + row : row * Cols + column;
}

// One thread's elements to or from a dense matrix. All slots valid (every layout without padding): the count is a
// constant and the loops vectorise.
template <class Tile, bool Swap, int Cols, class T, class F, class Get>
HM_FUNC void gather(thread F* dense, Get elements) {
  constexpr uint threads = 32 * Tile::simdgroups, share = Tile::rows * Tile::cols / threads;
  const device __hm_layout& m = Tile::template map<T>();
  const uint capacity = m.capacity;
  for (uint t = 0; t < threads; ++t) {
    const thread T* p = elements(t);
    const device uint* where = m.coord + t * capacity;
    if (share * threads == Tile::rows * Tile::cols && capacity == share) {
      F value[share];
      int to[share];
      for (uint i = 0; i < share; ++i) value[i] = static_cast<F>(p[i]);
      for (uint i = 0; i < share; ++i) to[i] = place<Swap, Cols>(where[i]);
      for (uint i = 0; i < share; ++i) dense[to[i]] = value[i];
    } else {
      for (uint i = 0; i < capacity; ++i)
        if (where[i] != HM_NO_ELEMENT) dense[place<Swap, Cols>(where[i])] = static_cast<F>(p[i]);
    }
  }
}

template <class Tile, int Cols, class T, class F, class Get>
HM_FUNC void scatter(const thread F* dense, Get elements) {
  constexpr uint threads = 32 * Tile::simdgroups, share = Tile::rows * Tile::cols / threads;
  const device __hm_layout& m = Tile::template map<T>();
  const uint capacity = m.capacity;
  for (uint t = 0; t < threads; ++t) {
    thread T* p = elements(t);
    const device uint* where = m.coord + t * capacity;
    if (share * threads == Tile::rows * Tile::cols && capacity == share) {
      F value[share];
      int from[share];
      for (uint i = 0; i < share; ++i) from[i] = place<false, Cols>(where[i]);
      for (uint i = 0; i < share; ++i) value[i] = dense[from[i]];
      for (uint i = 0; i < share; ++i) p[i] = static_cast<T>(value[i]);
    } else {
      for (uint i = 0; i < capacity; ++i)
        if (where[i] != HM_NO_ELEMENT) p[i] = static_cast<T>(dense[place<false, Cols>(where[i])]);
    }
  }
}

// c += a * b, the inner index in order. Two rows at a time keep enough sums in flight.
template <int M, int N, int K, class F>
HM_FUNC void multiply(thread F* c, const thread F* a, const thread F* b) {
  constexpr int rows = M % 2 == 0 ? 2 : 1, cols = N % 32 == 0 ? 32 : (N % 8 == 0 ? 8 : 1);
  for (int i = 0; i < M; i += rows)
    for (int j = 0; j < N; j += cols) {
      F sum[rows][cols];
      for (int r = 0; r < rows; ++r)
        for (int q = 0; q < cols; ++q) sum[r][q] = c[(i + r) * N + j + q];
      for (int k = 0; k < K; ++k)
        for (int r = 0; r < rows; ++r)
          for (int q = 0; q < cols; ++q) sum[r][q] += a[(i + r) * K + k] * b[k * N + j + q];
      for (int r = 0; r < rows; ++r)
        for (int q = 0; q < cols; ++q) c[(i + r) * N + j + q] = sum[r][q];
    }
}

// One thread's operands, as published at the rendezvous.
template <class L, class R, class C> struct operands {
  thread L* left;
  thread R* right;
  thread C* destination;
};

template <class T> HM_FUNC void note_reads(thread T& x) {
  if constexpr (is_cooperative<T>::value) x.note_reads();
}
template <class T> HM_FUNC void note_writes(thread T& x) {
  if constexpr (is_cooperative<T>::value) x.note_writes();
}

// Cooperative operands to and from dense matrices.
template <bool Swap, int Cols, class X, class F, class Op, thread X* Op::*Member>
HM_FUNC void gather_from(thread F* dense, void** slots) {
  gather<typename X::layout, Swap, Cols, typename X::element_type>(
      dense, [&](int t) { return (((thread Op*)slots[t])->*Member)->elements; });
}
template <int Cols, class X, class F, class Op, thread X* Op::*Member>
HM_FUNC void scatter_to(const thread F* dense, void** slots) {
  scatter<typename X::layout, Cols, typename X::element_type>(
      dense, [&](int t) { return (((thread Op*)slots[t])->*Member)->elements; });
}

// The same, and the multiplication, as calls.
template <bool Swap, int Cols, class X, class F, class Op, thread X* Op::*Member>
HM_DENSE void gather_dense(thread F* dense, void** slots) { gather_from<Swap, Cols, X, F, Op, Member>(dense, slots); }
template <int Cols, class X, class F, class Op, thread X* Op::*Member>
HM_DENSE void scatter_dense(const thread F* dense, void** slots) { scatter_to<Cols, X, F, Op, Member>(dense, slots); }
template <int M, int N, int K, class A, class B, class F>
HM_DENSE void multiply_dense(thread F* c, thread F* a, thread F* b, bool relaxed) {
  degrade<A>(a, M * K, relaxed);
  degrade<B>(b, K * N, relaxed);
  multiply<M, N, K>(c, a, b);
}
template <class F> HM_FUNC void clear(thread F* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = F(0);
}

// All three operands cooperative: the form of hand-placed fragments.
template <int M, int N, int K, bool SwapLeft, bool SwapRight, class L, class R, class C>
HM_DENSE void multiply_fragments(void** slots, bool relaxed, bool accumulate) {
  using F = typename accumulator<typename C::element_type>::type;
  using Op = operands<L, R, C>;
  alignas(32) F a[M * K], b[K * N], c[M * N];
  gather_from<SwapLeft, K, L, F, Op, &Op::left>(a, slots);
  gather_from<SwapRight, N, R, F, Op, &Op::right>(b, slots);
  degrade<typename L::element_type>(a, M * K, relaxed);
  degrade<typename R::element_type>(b, K * N, relaxed);
  if (accumulate) gather_from<false, N, C, F, Op, &Op::destination>(c, slots);
  else clear(c, M * N);
  multiply<M, N, K>(c, a, b);
  scatter_to<N, C, F, Op, &Op::destination>(c, slots);
}

}  // namespace __hm
