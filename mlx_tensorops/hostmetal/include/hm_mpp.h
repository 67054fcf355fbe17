// mpp::tensor_ops::matmul2d: descriptor, operation, cooperative tensor types.
#pragma once
#include "hm_matmul_tensor.h"
#include "hm_mpp_rules.h"
#include "hm_reduce.h"
#pragma clang system_header

namespace mpp {
namespace tensor_ops {

// Two spellings of "take K from the operands": this one and metal::dynamic_extent as an int (-1). 0 is neither.
template <class T> constexpr constant T dynamic_length_v = static_cast<T>(0x7fffffff);

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  HM_FUNC constexpr matmul2d_descriptor(int m, int n, int k = -1, bool transpose_left = false,
                                        bool transpose_right = false, bool relaxed_precision = false,
                                        mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
        relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}

  // C++17 has no class-type template arguments: as one, a descriptor becomes its bits.
  HM_FUNC constexpr operator ulong() const {
    return bits(m, n, k, transpose_left, transpose_right, relaxed_precision, matmul_mode);
  }
  HM_FUNC constexpr operator ulong() const constant {
    return bits(m, n, k, transpose_left, transpose_right, relaxed_precision, matmul_mode);
  }
  static HM_FUNC constexpr matmul2d_descriptor from_bits(ulong b) {
    const int k = static_cast<int>(b >> 32 & dynamic_k);
    return matmul2d_descriptor(static_cast<int>(b & 0xffff), static_cast<int>(b >> 16 & 0xffff), k == dynamic_k ? -1 : k,
                               b >> 60 & 1, b >> 61 & 1, b >> 62 & 1,
                               b >> 63 ? mode::multiply_accumulate : mode::multiply);
  }

 private:
  static constexpr constant int dynamic_k = 0xfffff;
  static HM_FUNC constexpr ulong bits(int m, int n, int k, bool left, bool right, bool relaxed, mode how) {
    const bool dynamic = k == -1 || k == dynamic_length_v<int>;
    return static_cast<ulong>(m & 0xffff) | static_cast<ulong>(n & 0xffff) << 16 |
           static_cast<ulong>(dynamic ? dynamic_k : k & dynamic_k) << 32 | static_cast<ulong>(left) << 60 |
           static_cast<ulong>(right) << 61 | static_cast<ulong>(relaxed) << 62 |
           static_cast<ulong>(how == mode::multiply_accumulate) << 63;
  }
};

}  // namespace tensor_ops
}  // namespace mpp

namespace __hm {

// decltype() of a variable carries `thread` from dialect 4.1 on; there Metal wants it removed by hand.
template <class T> struct operand_type {
#if __METAL_VERSION__ >= 410
  static_assert(same<T, metal::remove_addrspace_t<T>>::value,
                "operand types must be unqualified: use metal::remove_addrspace_t<decltype(...)>");
#endif
  using type = metal::remove_const_t<metal::remove_addrspace_t<T>>;
  using element = metal::remove_addrspace_t<typename type::element_type>;
};

template <class T, class Tile, class Coord>
using tile_tensor = metal::cooperative_tensor<T, metal::extents<Coord, Tile::cols, Tile::rows>, Tile>;

}  // namespace __hm

namespace mpp {
namespace tensor_ops {

template <ulong Descriptor, class Scope>
class matmul2d {
  static_assert(__hm::is_scope<Scope>::value, "Scope must be an execution scope");
  static_assert((Descriptor & 0xffff) > 0 && (Descriptor >> 16 & 0xffff) > 0, "M and N must be positive");

 public:
  static constexpr constant matmul2d_descriptor descriptor = matmul2d_descriptor::from_bits(Descriptor);
  using scope = Scope;

 private:
  static constexpr constant int M = descriptor.m, N = descriptor.n, K = descriptor.k;
  static constexpr constant bool swap_left = descriptor.transpose_left, swap_right = descriptor.transpose_right;
  static constexpr constant bool relaxed = descriptor.relaxed_precision;
  static constexpr constant int simdgroups = Scope::simdgroups;
  static constexpr constant uint inner = K < 0 ? 16 : K;

  template <uint Role, uint Rows, uint Cols, class L, class R, class C>
  using tile = __hm::tile<Role, Rows, Cols, (simdgroups > 0 ? simdgroups : 1),
                          !relaxed && (__hm::is_f32<L> || __hm::is_f32<R>), __hm::types<L, R, C>>;
  template <class T> using element = typename __hm::operand_type<T>::element;
  template <bool ByRow, class D>
  using line_tensor =
      metal::cooperative_tensor<typename D::element_type, metal::extents<typename D::index_type, (ByRow ? M : N)>,
                                __hm::reduction<ByRow, typename D::layout>>;

 public:
  template <class L, class R, class C, class Coord = int>
  using cooperative_tensor_left_input_t =
      __hm::tile_tensor<L, tile<HM_LEFT, (swap_left ? inner : M), (swap_left ? M : inner), L, R, C>, Coord>;
  template <class L, class R, class C, class Coord = int>
  using cooperative_tensor_right_input_t =
      __hm::tile_tensor<R, tile<HM_RIGHT, (swap_right ? N : inner), (swap_right ? inner : N), L, R, C>, Coord>;
  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  using cooperative_tensor_destination_t =
      __hm::tile_tensor<C, tile<HM_DESTINATION, M, N, element<LeftOperand>, element<RightOperand>, C>, Coord>;

  matmul2d() = default;

#if __HM_SDK >= 262
  template <class L, class R, class C, class Coord = int>
  HM_FUNC cooperative_tensor_left_input_t<L, R, C, Coord> get_left_input_cooperative_tensor() const {
    check_input<L, L, R, C>();
    return {};
  }
  template <class L, class R, class C, class Coord = int>
  HM_FUNC cooperative_tensor_right_input_t<L, R, C, Coord> get_right_input_cooperative_tensor() const {
    check_input<R, L, R, C>();
    return {};
  }
  // A destination of the operation before, as an input of this one.
  template <class L, class R, class C, class Coord = int, class Source>
  HM_FUNC cooperative_tensor_left_input_t<L, R, C, Coord> get_left_input_cooperative_tensor(
      thread Source& source, unsigned line = __builtin_LINE()) const {
    check_input<L, L, R, C>();
    check_source<Source, L, swap_left, M, K>();
    return cooperative_tensor_left_input_t<L, R, C, Coord>(
        __hm::conversion{"get_left_input_cooperative_tensor", line}, source);
  }
  template <class L, class R, class C, class Coord = int, class Source>
  HM_FUNC cooperative_tensor_right_input_t<L, R, C, Coord> get_right_input_cooperative_tensor(
      thread Source& source, unsigned line = __builtin_LINE()) const {
    check_input<R, L, R, C>();
    check_source<Source, R, swap_right, K, N>();
    return cooperative_tensor_right_input_t<L, R, C, Coord>(
        __hm::conversion{"get_right_input_cooperative_tensor", line}, source);
  }
  template <class L, class R, class C, class Source>
  HM_FUNC bool is_compatible_as_left_input(const thread Source&) const {
    check_source<Source, L, swap_left, M, K>();
    return __hm::same_registers<cooperative_tensor_left_input_t<L, R, C>, Source>();
  }
  template <class L, class R, class C, class Source>
  HM_FUNC bool is_compatible_as_right_input(const thread Source&) const {
    check_source<Source, R, swap_right, K, N>();
    return __hm::same_registers<cooperative_tensor_right_input_t<L, R, C>, Source>();
  }
#endif
  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  HM_FUNC cooperative_tensor_destination_t<LeftOperand, RightOperand, C, Coord>
  get_destination_cooperative_tensor() const {
    static_assert(simdgroups > 0,
                  "destination cannot be cooperative tensor with cooperative group of size 1");
    static_assert(__hm::is_f32<C> || __hm::is_f16<C> || __hm::is_bf16<C> || __hm::is_i32<C>, "Unsupported type");
    return {};
  }

  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  using cooperative_tensor_row_reduction_destination_t =
      line_tensor<true, cooperative_tensor_destination_t<LeftOperand, RightOperand, C, Coord>>;
  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  using cooperative_tensor_column_reduction_destination_t =
      line_tensor<false, cooperative_tensor_destination_t<LeftOperand, RightOperand, C, Coord>>;
  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  HM_FUNC cooperative_tensor_row_reduction_destination_t<LeftOperand, RightOperand, C, Coord>
  get_row_reduction_destination_cooperative_tensor() const {
    static_assert(simdgroups == 1, "Reductions require a single SIMD group");
    return {};
  }
  template <class LeftOperand, class RightOperand, class C, class Coord = int>
  HM_FUNC cooperative_tensor_column_reduction_destination_t<LeftOperand, RightOperand, C, Coord>
  get_column_reduction_destination_cooperative_tensor() const {
    static_assert(simdgroups == 1, "Reductions require a single SIMD group");
    return {};
  }

  // Operands are lvalues of the calling thread: temporaries do not bind.
  template <class L, class R, class C>
  HM_FUNC void run(thread L& left, thread R& right, thread C& destination, unsigned line = __builtin_LINE()) const {
    constexpr bool lc = __hm::is_cooperative<L>::value, rc = __hm::is_cooperative<R>::value;
    constexpr bool dc = __hm::is_cooperative<C>::value;
    static_assert(lc || __hm::is_tensor<L>::value, "Left operand must be a tensor or a left input cooperative tensor");
    static_assert(rc || __hm::is_tensor<R>::value, "Right operand must be a tensor or a right input cooperative tensor");
    static_assert(dc || __hm::is_tensor<C>::value,
                  "Destination must be a tensor or a destination cooperative tensor");
    using A = element<L>;
    using B = element<R>;
    using D = element<C>;
    constexpr bool packed = __hm::format<A>::bits < 8 || __hm::format<B>::bits < 8;
    static_assert(__hm::check_shape<M, N, K, simdgroups, lc, rc, packed>::ok);
    static_assert(__hm::legal_types<A, B, D>(), "Unsupported type");
    check_operand<HM_LEFT, L, A, B, D>();
    check_operand<HM_RIGHT, R, A, B, D>();
    check_operand<HM_DESTINATION, C, A, B, D>();
    const bool accumulate = descriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate ||
                            (__hm_flags & HM_RT_MULTIPLY_ACCUMULATES);
    if constexpr (simdgroups == 0) {
      __hm::operands<L, R, C> mine{&left, &right, &destination};
      void* slots[1] = {&mine};
      const long k = __hm::multiply_tensors<M, N, K, swap_left, swap_right, 0>(slots, left, right, destination, 1,
                                                                               relaxed, accumulate, line);
      count(k);
    } else {
      constexpr uint where = (simdgroups == 1 ? HM_SIMDGROUP : HM_THREADGROUP) | HM_WHOLE(simdgroups);
      constexpr uint window = simdgroups == 1 ? HM_ACCESS_SIMDGROUP : HM_ACCESS_THREADGROUP;
      __hm::note_reads(left);
      __hm::note_reads(right);
      if (accumulate) __hm::note_reads(destination);
      __hm::own_access();
      __hm::operands<L, R, C> mine{&left, &right, &destination};
      if (__hm_arrive(where, "matmul2d.run", line, &mine)) {
        long k = K;
        if constexpr (lc && rc && dc)
          __hm::multiply_fragments<M, N, K, swap_left, swap_right, L, R, C>(__hm_slots, relaxed, accumulate);
        else
          k = __hm::multiply_tensors<M, N, K, swap_left, swap_right, window>(
              __hm_slots, left, right, destination, 32 * simdgroups, relaxed, accumulate, line);
        count(k);
        __hm_release(where);
      }
      __hm::note_writes(destination);
    }
  }

 private:
  static HM_FUNC void count(long k) {
    __hm_count(HM_COUNT_MATMUL2D, 1);
    __hm_count(HM_COUNT_MACS, static_cast<ulong>(M) * N * k);
  }
  template <class T, class L, class R, class C> static HM_FUNC void check_input() {
    static_assert(simdgroups == 1, "Input cooperative tensors require a single SIMD group");
    static_assert(K >= 0, "Inner dimension cannot be dynamic with input cooperative tensors");
    static_assert(__hm::legal_input<T>(), "Unsupported type");
    static_assert(__hm::legal_types<L, R, C>(), "Unsupported type");
  }
  template <class Source, class T, bool Swap, int Rows, int Cols> static HM_FUNC void check_source() {
    static_assert(__hm::is_destination<typename Source::layout>::value,
                  "Source must be a destination cooperative tensor");
    static_assert(Source::layout::simdgroups == 1 && simdgroups == 1, "Both operations require a single SIMD group");
    static_assert(__hm::same<typename Source::element_type, T>::value, "Element types must match");
    static_assert(K >= 0 && !Swap, "Inner dimension cannot be dynamic and the operand cannot be transposed");
    static_assert(Source::layout::rows == Rows && Source::layout::cols == Cols, "Source and input shapes must match");
  }
  template <uint Role, class T, class A, class B, class D> static HM_FUNC void check_operand() {
    if constexpr (__hm::is_cooperative<T>::value) {
      static_assert(T::layout::role == Role, "A cooperative tensor of another role");
#if __HM_SDK >= 262
      static_assert(__hm::same<typename T::layout::operation, __hm::types<A, B, D>>::value,
                    "Input types must match cooperative tensor types");
#endif
    } else {
      static_assert(__hm::check_tensor<T, simdgroups == 0>::ok);
    }
  }
};

}  // namespace tensor_ops
}  // namespace mpp
