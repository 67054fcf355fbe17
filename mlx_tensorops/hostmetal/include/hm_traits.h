// Type traits of <metal_type_traits>. Where the dialect says so, the address space `thread` that decltype() of a
// local variable carries is not part of the type.
#pragma once
#include "hm_spaces.h"
#pragma clang system_header

struct bfloat;

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr constant T value = v;
  using value_type = T;
  using type = integral_constant;
  HM_FUNC constexpr operator T() const { return v; }
  HM_FUNC constexpr T operator()() const { return v; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct type_identity { using type = T; };
template <class T> using type_identity_t = typename type_identity<T>::type;

template <class T> struct remove_addrspace { using type = T; };
template <class T> struct remove_addrspace<device T> { using type = T; };
template <class T> struct remove_addrspace<threadgroup T> { using type = T; };
template <class T> struct remove_addrspace<constant T> { using type = T; };
template <class T> struct remove_addrspace<thread T> { using type = T; };
template <class T> struct remove_addrspace<__generic T> { using type = T; };
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;

template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> struct remove_cv {
  using type = remove_volatile_t<remove_const_t<remove_addrspace_t<T>>>;
};
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_cvref { using type = remove_cv_t<remove_reference_t<T>>; };
template <class T> using remove_cvref_t = typename remove_cvref<T>::type;
template <class T> struct decay { using type = remove_cvref_t<T>; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct add_const { using type = const T; };
template <class T> using add_const_t = typename add_const<T>::type;
template <class T> struct make_unsigned { using type = T; };
template <> struct make_unsigned<char> { using type = uchar; };
template <> struct make_unsigned<signed char> { using type = uchar; };
template <> struct make_unsigned<short> { using type = ushort; };
template <> struct make_unsigned<int> { using type = uint; };
template <> struct make_unsigned<long> { using type = ulong; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct make_signed { using type = T; };
template <> struct make_signed<uchar> { using type = char; };
template <> struct make_signed<ushort> { using type = short; };
template <> struct make_signed<uint> { using type = int; };
template <> struct make_signed<ulong> { using type = long; };
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> T&& declval();

}  // namespace metal

namespace __hm {

#if __METAL_VERSION__ >= 410
template <class T> using local_t = T;
#else
template <class T> struct unspaced { using type = T; };
template <class T> struct unspaced<thread T> { using type = T; };
template <class T> using local_t = typename unspaced<T>::type;
#endif

template <class A, class B> struct same : metal::false_type {};
template <class A> struct same<A, A> : metal::true_type {};

template <class T> struct is_int : metal::false_type {};
template <> struct is_int<bool> : metal::true_type {};
template <> struct is_int<char> : metal::true_type {};
template <> struct is_int<signed char> : metal::true_type {};
template <> struct is_int<uchar> : metal::true_type {};
template <> struct is_int<short> : metal::true_type {};
template <> struct is_int<ushort> : metal::true_type {};
template <> struct is_int<int> : metal::true_type {};
template <> struct is_int<uint> : metal::true_type {};
template <> struct is_int<long> : metal::true_type {};
template <> struct is_int<ulong> : metal::true_type {};

template <class T> struct is_float : metal::false_type {};
template <> struct is_float<half> : metal::true_type {};
template <> struct is_float<float> : metal::true_type {};
template <> struct is_float<bfloat> : metal::true_type {};

}  // namespace __hm

namespace metal {

template <class A, class B> struct is_same : __hm::same<__hm::local_t<A>, __hm::local_t<B>> {};
template <class A, class B> constexpr constant bool is_same_v = is_same<A, B>::value;
template <class T> struct is_integral : __hm::is_int<remove_cv_t<T>> {};
template <class T> constexpr constant bool is_integral_v = is_integral<T>::value;
template <class T> struct is_floating_point : __hm::is_float<remove_cv_t<T>> {};
template <class T> constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T> constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> constexpr constant bool is_pointer_v = is_pointer<T>::value;
template <class T> struct is_reference : false_type {};
template <class T> struct is_reference<T&> : true_type {};
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> constexpr constant bool is_const_v = is_const<T>::value;
template <class A, class B> struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class A, class B> constexpr constant bool is_convertible_v = __is_convertible(A, B);
template <class B, class D> struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> struct is_class : bool_constant<__is_class(T)> {};
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <class T>
struct is_unsigned : bool_constant<is_integral<T>::value && (remove_cv_t<T>(-1) > remove_cv_t<T>(0))> {};
template <> struct is_unsigned<half> : false_type {};
template <> struct is_unsigned<float> : false_type {};
template <> struct is_unsigned<bfloat> : false_type {};
template <class T> constexpr constant bool is_unsigned_v = is_unsigned<T>::value;
template <class T> struct is_signed : bool_constant<is_arithmetic<T>::value && !is_unsigned<T>::value> {};
template <class T> constexpr constant bool is_signed_v = is_signed<T>::value;

template <class... B> struct _disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct _conjunction : bool_constant<(B::value && ...)> {};
template <class B> struct _negation : bool_constant<!B::value> {};
template <class... B> using disjunction = _disjunction<B...>;
template <class... B> using conjunction = _conjunction<B...>;
template <class B> using negation = _negation<B>;

}  // namespace metal

// Compound assignment of a class that converts to a number (uniform, integral constants) to a variable of built-in
// type: Metal finds the built-in operator, this front end does not see through the variable's address space.
#define HM_ASSIGN_CLASS(op)                                                                                       \
  template <class A, class C,                                                                                     \
            metal::enable_if_t<metal::is_arithmetic<A>::value && !__is_class(A) && __is_class(C) &&               \
                                   __is_convertible(C, A), int> = 0>                                              \
  HM_FUNC A& operator op##=(A& a, C c) {                                                                          \
    return a = static_cast<metal::remove_addrspace_t<A>>(a op static_cast<metal::remove_addrspace_t<A>>(c));      \
  }
HM_ASSIGN_CLASS(+)
HM_ASSIGN_CLASS(-)
HM_ASSIGN_CLASS(*)
HM_ASSIGN_CLASS(/)
#undef HM_ASSIGN_CLASS
template <class T, class C, metal::enable_if_t<__is_class(C) && __is_convertible(C, long), int> = 0>
HM_FUNC T*& operator+=(T*& p, C c) {
  return p = p + static_cast<long>(c);
}
template <class T, class C, metal::enable_if_t<__is_class(C) && __is_convertible(C, long), int> = 0>
HM_FUNC T*& operator-=(T*& p, C c) {
  return p = p - static_cast<long>(c);
}
