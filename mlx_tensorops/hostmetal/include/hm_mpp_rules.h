// What matmul2d accepts, SDK by SDK: shapes, scopes, address spaces and operand types. The texts of the assertions are
// those of the MacOSX26.5 header's diagnostics, so that messages can be matched.
#pragma once
#include "hm_coop.h"
#pragma clang system_header

namespace __hm {

// The element types of one operation, in the order left, right, destination.
template <class L, class R, class C> struct types {
  using left = L;
  using right = R;
  using destination = C;
};

template <class T> constexpr constant bool is_i8 = same<T, char>::value || same<T, int8_t>::value;
template <class T> constexpr constant bool is_u8 = same<T, uchar>::value;
template <class T> constexpr constant bool is_f16 = same<T, half>::value;
template <class T> constexpr constant bool is_bf16 = same<T, bfloat>::value;
template <class T> constexpr constant bool is_f32 = same<T, float>::value;
template <class T> constexpr constant bool is_i32 = same<T, int>::value;

// Sub-byte and small floating-point right operands (26.4, and 27 at dialect 4.1).
template <class A, class B, class C> constexpr bool legal_formats() {
  constexpr bool f16 = is_f16<A> && (is_f16<C> || is_f32<C>), bf16 = is_bf16<A> && (is_bf16<C> || is_f32<C>);
  constexpr bool floats = f16 || bf16;
  (void)floats;
#ifdef __HAVE_INT4B_FORMAT_TYPE__
  if (same<B, metal::int4b_format>::value) return floats || (is_i8<A> && is_i32<C>);
  if (same<B, metal::uint4b_format>::value) return floats || (is_u8<A> && is_i32<C>);
#endif
#ifdef __HAVE_INT2B_FORMAT_TYPE__
  // Signedness pairs as for 4 bits: the only reading of the header's list that has its 69 rows.
  if (same<B, metal::int2b_format>::value) return floats || (is_i8<A> && is_i32<C>);
  if (same<B, metal::uint2b_format>::value) return floats || (is_u8<A> && is_i32<C>);
  return f16 || (same<A, B>::value && (is_f16<C> || is_f32<C>));
#endif
  return false;
}

// Legal combinations (MacOSX26.0 to 26.5 headers, the dispatch chains of run).
template <class A, class B, class C> constexpr bool legal_types() {
  if (format<B>::special) return legal_formats<A, B, C>();
  if (format<A>::special) return false;
  constexpr bool bytes = __HM_SDK >= 264;  // uint8 rows mirror the int8 ones
  constexpr bool a8 = is_i8<A> || (bytes && is_u8<A>), b8 = is_i8<B> || (bytes && is_u8<B>);
  if (is_i8<A> && is_i8<B>) return is_i32<C>;
  if (is_u8<A> && is_u8<B>) return bytes && is_i32<C>;
  if ((is_f16<A> && is_f16<B>) || (a8 && is_f16<B>) || (is_f16<A> && b8)) return is_f16<C> || is_f32<C>;
  if ((is_f32<A> && (is_f32<B> || is_f16<B> || b8)) || (is_f32<B> && (is_f16<A> || a8))) return is_f32<C>;
  if (__HM_SDK < 261) return false;  // bfloat rows arrive in 26.1
  if ((is_bf16<A> && is_bf16<B>) || (is_bf16<A> && b8) || (a8 && is_bf16<B>)) return is_bf16<C> || is_f32<C>;
  if ((is_bf16<A> && is_f32<B>) || (is_f32<A> && is_bf16<B>)) return is_f32<C>;
  if ((is_bf16<A> && is_f16<B>) || (is_f16<A> && is_bf16<B>)) return is_bf16<C> || is_f16<C> || is_f32<C>;
  return false;
}

// Element types that an input cooperative tensor may have.
template <class T> constexpr bool legal_input() {
  return is_i8<T> || is_f32<T> || is_f16<T> || is_bf16<T> || (__HM_SDK >= 264 && is_u8<T>);
}

constexpr bool dim_16_or_32(int d) { return d == 16 || d == 32; }
constexpr bool thread_dim(int d) { return d == 1 || d == 2 || d == 4 || (d > 0 && d % 8 == 0); }

// Shape rules of one run(). K is negative when dynamic; Simdgroups is 0 for execution_thread.
template <int M, int N, int K, int Simdgroups, bool LeftCooperative, bool RightCooperative, bool SubByte>
struct check_shape {
#if __HM_SDK >= 262
  static constexpr constant bool input = LeftCooperative || RightCooperative;
  static constexpr constant bool both = LeftCooperative && RightCooperative;
  static_assert(!input || Simdgroups == 1, "Input cooperative tensors require a single SIMD group");
  static_assert(!input || K >= 0, "Inner dimension cannot be dynamic with input cooperative tensors");
  static_assert(!both || M == 32 || N == 32 || K == 32,
                "At least one of M, N, or K must be 32 if both inputs are cooperative tensors");
  static_assert(!both || dim_16_or_32(M), "M must be 16 or 32 if both inputs are cooperative tensors");
  static_assert(!both || dim_16_or_32(N), "N must be 16 or 32 if both inputs are cooperative tensors");
  static_assert(!both || K < 0 || dim_16_or_32(K), "K must be 16 or 32 if both inputs are cooperative tensors");
#else
  static_assert(!LeftCooperative, "Left operand must be a tensor");
  static_assert(!RightCooperative, "Right operand must be a tensor");
#endif
#if __HM_SDK >= 264
  static constexpr constant bool group = Simdgroups > 0;
  static_assert(!group || M % 8 == 0, "M must be a multiple of 8 or 16");
  static_assert(!group || N % 8 == 0, "N must be a multiple of 8 or 16");
  static_assert(!group || M % 16 == 0 || N % 16 == 0, "At least one of M or N must be a multiple of 16");
  static_assert(K < 0 || K % 16 == 0, "K must be dynamic or a multiple of 16");
  static_assert(!SubByte || K < 0 || K % 32 == 0,
                "K must be dynamic or a multiple of 32 with sub-byte element types");
  static_assert(group || thread_dim(M), "M must be 1, 2, 4, or a multiple of 8 with execution_thread");
  static_assert(group || thread_dim(N), "N must be 1, 2, 4, or a multiple of 8 with execution_thread");
#endif
  static constexpr constant bool ok = true;
};

// One tensor operand: rank, index type, address space.
template <class T, bool Thread> struct check_tensor {
  static_assert(T::get_rank() == 2, "Operand must have rank 2");
  static_assert(same<typename T::index_type, int>::value, "Index type must be int");
  static_assert(!metal::is_const<metal::remove_addrspace_t<typename T::element_type>>::value, "Unsupported type");
  static constexpr constant space where = space_of<typename T::element_type>;
  static_assert(where == space::device_ || where == (Thread ? space::thread_ : space::threadgroup_),
                "Unsupported address space");
  static constexpr constant bool ok = true;
};

}  // namespace __hm
