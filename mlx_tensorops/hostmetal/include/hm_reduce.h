// Reductions of a destination tile to one value for each row or column, and the conversion of a destination tile into
// an input of the next operation.
#pragma once
#include "hm_limits.h"
#include "hm_matmul.h"
#pragma clang system_header

namespace mpp {
namespace tensor_ops {

enum class reduction_operation { sum, max, min };

template <class T> struct reduction_operation_identity {
  static constexpr constant T sum_identity = static_cast<T>(0);
#if __HM_SDK >= 261  // the 26.0 header initialises these two with functions that it does not call
  static constexpr constant T max_identity = metal::numeric_limits<T>::lowest();
  static constexpr constant T min_identity = metal::numeric_limits<T>::max();
#endif
};

}  // namespace tensor_ops
}  // namespace mpp

namespace __hm {

template <class T> struct is_reduction : metal::false_type {};
template <bool ByRow, class Tile> struct is_reduction<reduction<ByRow, Tile>> : metal::true_type {};
template <class T> struct is_destination : metal::false_type {};
template <uint Rows, uint Cols, uint S, bool Strict, class Op>
struct is_destination<tile<HM_DESTINATION, Rows, Cols, S, Strict, Op>> : metal::true_type {};

template <class From, class To> struct tile_pair {
  thread From* from;
  thread To* to;
};

template <bool ByRow, class From, class To>
HM_DENSE void reduce_tile(void** slots, int how, typename From::element_type identity) {
  using T = typename From::element_type;
  using Tile = typename From::layout;
  using F = typename accumulator<T>::type;
  using Op = tile_pair<From, To>;
  alignas(32) F dense[Tile::rows * Tile::cols];
  gather_from<false, Tile::cols, From, F, Op, &Op::from>(dense, slots);
  constexpr int lines = ByRow ? Tile::rows : Tile::cols, length = ByRow ? Tile::cols : Tile::rows;
  F total[lines];
  for (int l = 0; l < lines; ++l) {
    F r = static_cast<F>(identity);
    for (int i = 0; i < length; ++i) {
      const F x = ByRow ? dense[l * Tile::cols + i] : dense[i * Tile::cols + l];
      r = how == 0 ? r + x : (how == 1 ? (x > r ? x : r) : (x < r ? x : r));
    }
    total[l] = r;
  }
  for (uint t = 0; t < 32; ++t)
    for (uint i = 0; i < To::layout::template capacity<T>(); ++i) {
      const position p = To::layout::template at<T>(t, i);
      if (p.valid()) ((thread Op*)slots[t])->to->elements[i] = static_cast<T>(total[p.column()]);
    }
}

template <bool ByRow, class From, class To>
HM_FUNC void reduce_lines(HM_TEXT name, thread From& from, thread To& to, mpp::tensor_ops::reduction_operation how,
                          typename From::element_type identity, unsigned line) {
  using T = typename From::element_type;
  static_assert(is_destination<typename From::layout>::value, "Source must be a destination cooperative tensor");
  static_assert(same<typename To::layout, reduction<ByRow, typename From::layout>>::value,
                "Destination must be the matching reduction cooperative tensor of the same operation");
  static_assert(same<T, typename To::element_type>::value, "Element types must match");
  static_assert(From::layout::simdgroups == 1, "Reductions require a single SIMD group");
  static_assert(same<T, half>::value || same<T, int>::value || same<T, float>::value || same<T, bfloat>::value,
                "Unsupported type");
  from.note_reads();
  own_access();
  tile_pair<From, To> mine{&from, &to};
  if (__hm_arrive(HM_SIMDGROUP | HM_WHOLE(1), name, line, &mine)) {
    reduce_tile<ByRow, From, To>(__hm_slots, static_cast<int>(how), identity);
    __hm_release(HM_SIMDGROUP | HM_WHOLE(1));
  }
  to.note_writes();
}

// A destination tile as an input tile of equal shape.
template <class From, class To> HM_DENSE void move_tile(void** slots) {
  using Op = tile_pair<From, To>;
  using T = typename From::element_type;
  using Tile = typename From::layout;
  alignas(32) T dense[Tile::rows * Tile::cols];
  gather_from<false, Tile::cols, From, T, Op, &Op::from>(dense, slots);
  scatter_to<Tile::cols, To, T, Op, &Op::to>(dense, slots);
}
struct conversion {
  HM_TEXT name;
  unsigned line;
  template <class From, class To> HM_FUNC void operator()(thread From& from, thread To* to) const {
    from.note_reads();
    own_access();
    tile_pair<From, To> mine{&from, to};
    if (__hm_arrive(HM_SIMDGROUP | HM_WHOLE(1), name, line, &mine)) {
      move_tile<From, To>(__hm_slots);
      __hm_release(HM_SIMDGROUP | HM_WHOLE(1));
    }
    to->note_writes();
  }
};

// Whether the registers of one tile can serve as those of the other.
template <class A, class B> HM_FUNC bool same_registers() {
  const device __hm_layout& a = A::layout::template map<typename A::element_type>();
  const device __hm_layout& b = B::layout::template map<typename B::element_type>();
  if (a.capacity != b.capacity) return false;
  for (uint i = 0; i < 32 * a.capacity; ++i)
    if (a.coord[i] != b.coord[i]) return false;
  return true;
}

}  // namespace __hm

namespace mpp {
namespace tensor_ops {

// The identity is the sum's unless given: a maximum of negative rows needs max_identity.
template <class From, class To>
HM_FUNC void reduce_rows(thread From& source, thread To& destination,
                         reduction_operation operation = reduction_operation::sum,
                         typename From::element_type identity =
                             reduction_operation_identity<typename From::element_type>::sum_identity,
                         unsigned line = __builtin_LINE()) {
  __hm::reduce_lines<true>("reduce_rows", source, destination, operation, identity, line);
}
template <class From, class To>
HM_FUNC void reduce_columns(thread From& source, thread To& destination,
                            reduction_operation operation = reduction_operation::sum,
                            typename From::element_type identity =
                                reduction_operation_identity<typename From::element_type>::sum_identity,
                            unsigned line = __builtin_LINE()) {
  __hm::reduce_lines<false>("reduce_columns", source, destination, operation, identity, line);
}

template <class From, class To> HM_FUNC bool is_iterator_compatible(const thread From&, const thread To&) {
  if constexpr (__hm::is_reduction<typename To::layout>::value)
    return __hm::same<typename To::layout::source, typename From::layout>::value;
  else
    return false;
}

}  // namespace tensor_ops
}  // namespace mpp
