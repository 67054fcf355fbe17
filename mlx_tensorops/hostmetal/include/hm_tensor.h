// extents and tensor: views of memory with a shape. Dimension 0 is the innermost one (the column).
#pragma once
#include "hm_formats.h"
#include "hm_sync.h"
#include "hm_vec.h"
#pragma clang system_header

namespace metal {

constexpr constant size_t dynamic_extent = static_cast<size_t>(-1);

template <class Index, size_t... E>
struct extents {
  using index_type = Index;
  static constexpr constant size_t fixed[sizeof...(E)] = {E...};
  Index values[sizeof...(E)];

  HM_FUNC constexpr extents() : values{static_cast<Index>(E == dynamic_extent ? 0 : E)...} {}
  template <class... A, enable_if_t<sizeof...(A) == sizeof...(E), int> = 0>
  HM_FUNC constexpr extents(A... a) : values{static_cast<Index>(a)...} {}
  static HM_FUNC constexpr size_t rank() { return sizeof...(E); }
  static HM_FUNC constexpr size_t static_extent(size_t i) { return fixed[i]; }
  HM_FUNC constexpr Index extent(size_t i) const { return values[i]; }
};

}  // namespace metal

namespace __hm {

template <class I, size_t R, size_t... E> struct dynamic_extents {
  using type = typename dynamic_extents<I, R - 1, E..., metal::dynamic_extent>::type;
};
template <class I, size_t... E> struct dynamic_extents<I, 0, E...> { using type = metal::extents<I, E...>; };

// Raised where the API itself does not check.
HM_FUNC void slice_outside(long offset, long bytes, unsigned line) {
  if (bytes != static_cast<int>(bytes))
    __hm_finding(HM_FIND_EXTENT, line,
                 "slice: the byte offset %ld of dimension offset %ld does not fit 32 bits and wraps on hardware; "
                 "advance the pointer instead", bytes, offset);
}

}  // namespace __hm

namespace metal {

template <class Index, size_t Rank> using dextents = typename __hm::dynamic_extents<Index, Rank>::type;

struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

template <class T, class Extents, class Descriptor = tensor_handle, class... Tags>
struct tensor {
  static_assert(__hm::same<Descriptor, tensor_handle>::value || __hm::same<Descriptor, tensor_inline>::value,
                "Descriptor must be tensor_handle or tensor_inline");
  static_assert(Extents::rank() >= 1 && Extents::rank() <= 16, "Rank must be between 1 and 16");
  using element_type = T;
  using value_type = remove_cv_t<remove_addrspace_t<T>>;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using descriptor_type = Descriptor;
  static constexpr constant size_t rank = Extents::rank();

  template <class X>
  using sliced = conditional_t<__hm::same<Descriptor, tensor_handle>::value,
                               tensor<T, X, tensor_handle, tensor_offset>, tensor<T, X, tensor_inline>>;

  T* data;
  Extents shape;
  long stride[rank];

  HM_FUNC tensor(T* p, Extents e) : data(p), shape(e) {
    long step = 1;
    for (size_t i = 0; i < rank; ++i) {
      stride[i] = step;
      step *= e.extent(i);
    }
  }
  template <class S>
  HM_FUNC tensor(T* p, Extents e, array<S, rank> strides) : data(p), shape(e) {
    for (size_t i = 0; i < rank; ++i) stride[i] = strides[i];
    if (stride[0] != 1)
      __hm_finding(HM_FIND_ARGUMENT, 0, "tensor: stride[0] is %ld; the innermost stride must be 1", stride[0], 0);
  }
  HM_FUNC tensor(T* p, Extents e, const long (&strides)[rank]) : data(p), shape(e) {
    for (size_t i = 0; i < rank; ++i) stride[i] = strides[i];
  }

  static HM_FUNC constexpr size_t get_rank() { return rank; }
  static HM_FUNC constexpr size_t get_static_extent(size_t i) { return Extents::static_extent(i); }
  static HM_FUNC constexpr bool has_static_extent(size_t i) { return Extents::static_extent(i) != dynamic_extent; }
  HM_FUNC index_type get_extent(size_t i) const { return shape.extent(i); }
  HM_FUNC long get_stride(size_t i) const { return stride[i]; }
  HM_FUNC Extents get_extents() const { return shape; }

  template <class... I>
  HM_FUNC T& at(I... i) const {
    static_assert(sizeof...(I) == rank, "one index for each dimension");
    const long index[] = {static_cast<long>(i)...};
    long offset = 0;
    for (size_t k = 0; k < rank; ++k) offset += index[k] * stride[k];
    return data[offset];
  }
  // t[i, j] is not C++17: for more than one dimension this front end would read it as t[j].
  template <class I, enable_if_t<is_integral_v<I> && rank == 1, int> = 0>
  HM_FUNC T& operator[](I i) const { return at(i); }
  template <class I>
  HM_FUNC T& operator[](array<I, rank> index) const {
    long offset = 0;
    for (size_t k = 0; k < rank; ++k) offset += index[k] * stride[k];
    return data[offset];
  }
  // Bounds-checked access; when read, a dimension of size 1 repeats.
  template <class... I>
  HM_FUNC value_type get(I... i) const {
    long offset = 0;
    if (!locate<true>(offset, static_cast<long>(i)...)) return value_type(static_cast<char>(0));
    return data[offset];
  }
  template <class V, class... I>
  HM_FUNC void set(V v, I... i) const {
    long offset = 0;
    if (locate<false>(offset, static_cast<long>(i)...)) data[offset] = static_cast<value_type>(v);
  }

  // The rest of the tensor from an offset.
  template <class... I>
  HM_FUNC auto slice(I... i) const {
    static_assert(sizeof...(I) == rank, "one offset for each dimension");
    const long offset[] = {static_cast<long>(i)...};
    dextents<index_type, rank> e;
    long first = 0;
    for (size_t k = 0; k < rank; ++k) {
      e.values[k] = static_cast<index_type>(shape.extent(k) - offset[k]);
      first += offset[k] * stride[k];
    }
    __hm::slice_outside(offset[rank - 1], first * __hm::format<value_type>::bits / 8, 0);
    return sliced<dextents<index_type, rank>>(__hm::advanced(data, first), e, stride);
  }
  // A window of fixed size (dynamic_extent: the rest): nothing checks that it lies inside.
  template <auto E0, auto... E, class... I>
  HM_FUNC auto slice(I... i) const {
    static_assert(sizeof...(I) == rank && sizeof...(E) + 1 == rank, "one extent and one offset for each dimension");
    auto rest = slice(i...);
    using window = extents<index_type, widen(E0), widen(E)...>;
    window e;
    for (size_t k = 0; k < rank; ++k)
      if (window::static_extent(k) == dynamic_extent) e.values[k] = rest.shape.values[k];
    return sliced<window>(rest.data, e, stride);
  }

 private:
  static HM_FUNC constexpr size_t widen(long e) { return static_cast<size_t>(e); }
  template <bool Repeats, class... I>
  HM_FUNC bool locate(thread long& offset, I... i) const {
    static_assert(sizeof...(I) == rank, "one index for each dimension");
    const long index[] = {i...};
    for (size_t k = 0; k < rank; ++k) {
      const long e = shape.extent(k);
      if (Repeats && e == 1) continue;
      if (index[k] < 0 || index[k] >= e) return false;
      offset += index[k] * stride[k];
    }
    return true;
  }
};
}  // namespace metal

namespace __hm {
template <class T> struct tensor_kind {
  static constexpr constant bool stored_inline = false, handle = false, offset = false;
};
template <class T, class E, class D, class... G> struct tensor_kind<metal::tensor<T, E, D, G...>> {
  static constexpr constant bool stored_inline = same<D, metal::tensor_inline>::value;
  static constexpr constant bool handle = same<D, metal::tensor_handle>::value;
  static constexpr constant bool offset = (same<G, metal::tensor_offset>::value || ...);
};
}  // namespace __hm

namespace metal {

template <class T, class E> tensor(T*, E) -> tensor<T, E, tensor_inline>;
template <class T, class E, class S, size_t R> tensor(T*, E, array<S, R>) -> tensor<T, E, tensor_inline>;

template <class T>
constexpr constant bool is_tensor_inline_v = __hm::tensor_kind<remove_cv_t<T>>::stored_inline;
template <class T>
constexpr constant bool is_tensor_handle_v = __hm::tensor_kind<remove_cv_t<T>>::handle;
template <class T>
constexpr constant bool has_tensor_offset_v = __hm::tensor_kind<remove_cv_t<T>>::offset;

}  // namespace metal

namespace __hm {

// A handle as a kernel argument: the buffer holds 16 extents and 16 strides as 64-bit integers, innermost first, and
// from byte 256 on the elements.
template <class T, class Index, size_t... E>
struct argument<metal::tensor<T, metal::extents<Index, E...>, metal::tensor_handle>> {
  using handle = metal::tensor<T, metal::extents<Index, E...>, metal::tensor_handle>;
  static HM_FUNC handle from(ulong address) {
    const device long* head = (const device long*)address;
    metal::extents<Index, E...> shape;
    long stride[sizeof...(E)];
    for (size_t i = 0; i < sizeof...(E); ++i) {
      shape.values[i] = static_cast<Index>(head[i]);
      stride[i] = head[16 + i];
    }
    return handle((T*)(address + 256), shape, stride);
  }
};

template <class T> struct is_tensor : metal::false_type {};
template <class T, class E, class D, class... G> struct is_tensor<metal::tensor<T, E, D, G...>> : metal::true_type {};

enum class space { device_, threadgroup_, thread_, constant_, none_ };
template <class T> constexpr constant space space_of = space::none_;
template <class T> constexpr constant space space_of<device T> = space::device_;
template <class T> constexpr constant space space_of<threadgroup T> = space::threadgroup_;
template <class T> constexpr constant space space_of<thread T> = space::thread_;
template <class T> constexpr constant space space_of<constant T> = space::constant_;

}  // namespace __hm
