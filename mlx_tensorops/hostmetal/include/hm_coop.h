// cooperative_tensor: a tile whose elements are spread over the threads of an execution scope. Which thread owns which
// element is the runtime's choice (__hm_layout_of), so a kernel can be run under several layouts without a compile.
#pragma once
#include "hm_tensor.h"
#pragma clang system_header

#if HM_CHECKED_BUILD
extern "C" {
void __tsan_read1(void*);
void __tsan_read2(void*);
void __tsan_read4(void*);
void __tsan_write1(void*);
void __tsan_write2(void*);
void __tsan_write4(void*);
}
#endif

namespace __hm {

struct position {
  uint packed;  // column | row << 16
  HM_FUNC bool valid() const { return packed != HM_NO_ELEMENT; }
  HM_FUNC uint column() const { return packed & 0xffff; }
  HM_FUNC uint row() const { return packed >> 16; }
};

// A two-dimensional tile of Rows x Cols as stored. Operation: the matmul2d types that it was made for.
template <uint Role, uint Rows, uint Cols, uint Simdgroups, bool Strict, class Operation>
struct tile {
  static constexpr constant uint role = Role;
  static constexpr constant uint rows = Rows;
  static constexpr constant uint cols = Cols;
  static constexpr constant uint simdgroups = Simdgroups;
  static constexpr constant uint slots = HM_SLOTS(Rows, Cols, Simdgroups);
  using operation = Operation;

  template <class T> static HM_FUNC const device __hm_layout& map() {
    return *__hm_layout_of(Role, Rows, Cols, Simdgroups, sizeof(T), Strict);
  }
  static HM_FUNC uint self() { return Simdgroups > 1 ? __hm_cur->lane + 32 * __hm_cur->simdgroup : __hm_cur->lane; }
  template <class T> static HM_FUNC uint capacity() { return map<T>().capacity; }
  template <class T> static HM_FUNC position at(uint owner, uint i) {
    const device __hm_layout& m = map<T>();
    return {m.coord[owner * m.capacity + i]};
  }
  // Whether this thread writes the element on store: every element of a tile has one owner.
  template <class T> static HM_FUNC bool stores(uint) { return true; }
};

// The rows (ByRow) or columns of Tile, one value for each: a thread holds those of its own elements, in the order in
// which it meets them, so that threads share values; the first of them stores.
template <bool ByRow, class Tile>
struct reduction {
  static constexpr constant uint role = ByRow ? 3 : 4;
  static constexpr constant uint slots = Tile::slots;
  static constexpr constant uint length = ByRow ? Tile::rows : Tile::cols;
  using source = Tile;
  using operation = typename Tile::operation;

  static HM_FUNC uint self() { return Tile::self(); }
  template <class T> static HM_FUNC uint capacity() { return Tile::template capacity<T>(); }
  template <class T> static HM_FUNC uint line_of(uint owner, uint i) {
    const position p = Tile::template at<T>(owner, i);
    return !p.valid() ? HM_NO_ELEMENT : (ByRow ? p.row() : p.column());
  }
  template <class T> static HM_FUNC position at(uint owner, uint i) {
    uint distinct = 0;
    for (uint k = 0; k < capacity<T>(); ++k) {
      const uint l = line_of<T>(owner, k);
      bool seen = l == HM_NO_ELEMENT;
      for (uint j = 0; j < k; ++j) seen = seen || line_of<T>(owner, j) == l;
      if (!seen && distinct++ == i) return {l};
    }
    return {HM_NO_ELEMENT};
  }
  template <class T> static HM_FUNC bool stores(uint i) {
    const uint l = at<T>(self(), i).packed;
    for (uint owner = 0; owner < self(); ++owner)
      for (uint k = 0; k < capacity<T>(); ++k)
        if (line_of<T>(owner, k) == l) return false;
    return true;
  }
  template <class L, class T, class U> static HM_FUNC uint mapped(uint from) {
    static_assert(same<L, Tile>::value && same<T, U>::value, "map_iterator needs compatible cooperative tensors");
    const uint l = line_of<T>(self(), from);
    for (uint i = 0; i < capacity<T>(); ++i)
      if (at<T>(self(), i).packed == l) return i;
    return 0;
  }
};

// Device loads of load() and run(): how the hardware reads operands is unknown, so they are counted apart.
HM_FUNC void opaque_access(uint extra = 0) {
#if HM_CHECKED_BUILD
  __hm_modes(HM_ACCESS_OPAQUE | extra);
#endif
}
HM_FUNC void plain_access() {
#if HM_CHECKED_BUILD
  __hm_modes(HM_ACCESS_PLAIN);
#endif
}

// Until the rendezvous that follows: accesses to what the headers themselves publish are no traffic of the kernel's.
HM_FUNC void own_access() {
#if HM_CHECKED_BUILD
  __hm_modes(HM_ACCESS_UNCHECKED);
#endif
}

// What the access hooks of the checked build would see, had the operation been compiled where it is called.
template <class T> HM_FUNC void note_read(thread T* p) {
#if HM_CHECKED_BUILD
  if constexpr (sizeof(T) == 1) __tsan_read1(p);
  else if constexpr (sizeof(T) == 2) __tsan_read2(p);
  else __tsan_read4(p);
#endif
}
template <class T> HM_FUNC void note_write(thread T* p) {
#if HM_CHECKED_BUILD
  if constexpr (sizeof(T) == 1) __tsan_write1(p);
  else if constexpr (sizeof(T) == 2) __tsan_write2(p);
  else __tsan_write4(p);
#endif
}

}  // namespace __hm

namespace metal {

template <class T, class Extents, class Layout>
class cooperative_tensor {
 public:
  using element_type = T;
  using value_type = T;
  using extents_type = Extents;
  using layout = Layout;
  using index_type = typename Extents::index_type;
  using iterator = thread T*;
  using const_iterator = const thread T*;
  static constexpr constant size_t rank = Extents::rank();
  static_assert(__hm::same<index_type, int>::value || __hm::same<index_type, uint>::value ||
                    __hm::same<index_type, short>::value || __hm::same<index_type, ushort>::value,
                "Coordinate type must be int, uint, short or ushort");

  HM_FUNC cooperative_tensor() {
#if HM_CHECKED_BUILD
    __hm_cooperative_open(elements, sizeof(elements));
#else
    __builtin_memset(elements, 0xff, sizeof(elements));  // NaN in every floating-point type
#endif
  }
#if HM_CHECKED_BUILD
  HM_FUNC ~cooperative_tensor() { __hm_cooperative_close(elements); }
#endif
  // Conversion of another operation's tile; collective (hm_reduce.h).
  template <class Convert, class Source>
  HM_FUNC cooperative_tensor(Convert convert, thread Source& source) : cooperative_tensor() {
    convert(source, (thread cooperative_tensor*)this);
  }
  // Before SDK 27 the real copy writes in the wrong direction and the real move does nothing.
  cooperative_tensor(const cooperative_tensor&) = delete;
  cooperative_tensor& operator=(const cooperative_tensor&) = delete;

  static HM_FUNC constexpr size_t get_rank() { return rank; }
  HM_FUNC ushort get_capacity() const { return static_cast<ushort>(Layout::template capacity<T>()); }

  HM_FUNC thread T& operator[](uint i) thread { return elements[checked(i)]; }
  HM_FUNC const thread T& operator[](uint i) const thread { return elements[checked(i)]; }

  HM_FUNC bool is_valid_element(uint i) const thread {
    return i < Layout::template capacity<T>() && at(i).valid();
  }
  HM_FUNC array<index_type, rank> get_multidimensional_index(uint i) const thread {
    const __hm::position p = at(checked(i));
    array<index_type, rank> r;
    r[0] = static_cast<index_type>(p.column());
    if constexpr (rank == 2) r[1] = static_cast<index_type>(p.row());
    return r;
  }
  HM_FUNC T get(uint i) const thread {
    if (is_valid_element(i)) return elements[i];
    return T(static_cast<char>(0));
  }
  template <class V> HM_FUNC void set(uint i, V v) thread {
    if (is_valid_element(i)) elements[i] = static_cast<T>(v);
  }
  // An iterator is the address of a slot.
  HM_FUNC bool is_valid_element(const thread T* p) const thread { return is_valid_element(slot(p)); }
  HM_FUNC array<index_type, rank> get_multidimensional_index(const thread T* p) const thread {
    return get_multidimensional_index(slot(p));
  }
  HM_FUNC T get(const thread T* p) const thread { return get(slot(p)); }
  template <class V> HM_FUNC void set(thread T* p, V v) thread { set(slot(p), v); }
  HM_FUNC iterator begin() thread { return elements; }
  HM_FUNC iterator end() thread { return elements + get_capacity(); }
  HM_FUNC const_iterator begin() const thread { return elements; }
  HM_FUNC const_iterator end() const thread { return elements + get_capacity(); }
  HM_FUNC iterator get_iterator(uint i) thread { return elements + i; }

  // The slot of this tensor for the element that an iterator of a compatible tensor points at.
  template <class U, class X, class L>
  HM_FUNC iterator map_iterator(const thread cooperative_tensor<U, X, L>& from, const thread U* p) thread {
    return elements + Layout::template mapped<L, T, U>(from.slot(p));
  }

  // The element types must be equal; elements outside the tensor's extents read as zero and are not written.
  template <class E, class X, class D, class... G, enable_if_t<__hm::same<remove_cv_t<E>, T>::value, int> = 0>
  HM_FUNC void load(const tensor<E, X, D, G...>& t) thread {
    check_transfer<E, X>();
    __hm::opaque_access();
    for (uint i = 0; i < get_capacity(); ++i) {
      const __hm::position p = at(i);
      if (!p.valid()) continue;
      if constexpr (rank == 2) elements[i] = t.get(p.column(), p.row());
      else elements[i] = t.get(p.column());
    }
    __hm::plain_access();
  }
  template <class E, class X, class D, class... G, enable_if_t<__hm::same<remove_cv_t<E>, T>::value, int> = 0>
  HM_FUNC void store(const tensor<E, X, D, G...>& t) const thread {
    check_transfer<E, X>();
    for (uint i = 0; i < get_capacity(); ++i) {
      const __hm::position p = at(i);
      if (!p.valid() || !Layout::template stores<T>(i)) continue;
      if constexpr (rank == 2) t.set(elements[i], p.column(), p.row());
      else t.set(elements[i], p.column());
    }
  }

  // Reports the accesses of an operation that works on all threads' elements at once.
  HM_FUNC void note_reads() thread {
#if HM_CHECKED_BUILD
    for (uint i = 0; i < get_capacity(); ++i)
      if (at(i).valid()) __hm::note_read(elements + i);
#endif
  }
  HM_FUNC void note_writes() thread {
#if HM_CHECKED_BUILD
    for (uint i = 0; i < get_capacity(); ++i)
      if (at(i).valid()) __hm::note_write(elements + i);
#endif
  }

  // Public for the operations; no name of Metal's.
  alignas(16) T elements[Layout::slots];
  HM_FUNC uint slot(const thread T* p) const thread { return static_cast<uint>(p - elements); }

 private:
  static HM_FUNC __hm::position at(uint i) { return Layout::template at<T>(Layout::self(), i); }
  static HM_FUNC uint checked(uint i) {
    if (i >= Layout::template capacity<T>())
      __hm_finding(HM_FIND_CAPACITY | HM_FATAL, 0, "cooperative_tensor: index %ld, but get_capacity() is %ld", i,
                   Layout::template capacity<T>());
    return i;
  }
  template <class E, class X> static HM_FUNC void check_transfer() {
    static_assert(X::rank() == rank, "The tensor must have the rank of the cooperative tensor");
    static_assert(__hm::space_of<E> == __hm::space::device_ || __hm::space_of<E> == __hm::space::threadgroup_,
                  "load and store take tensors in device or threadgroup memory");
  }
};

}  // namespace metal

namespace __hm {
template <class T> struct is_cooperative : metal::false_type {};
template <class T, class X, class L> struct is_cooperative<metal::cooperative_tensor<T, X, L>> : metal::true_type {};
}  // namespace __hm
