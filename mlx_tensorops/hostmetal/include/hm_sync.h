// Barriers, fences and execution scopes.
#pragma once
#include "hm_traits.h"
#pragma clang system_header

namespace metal {

enum class mem_flags : uint {
  mem_none = HM_MEM_NONE,
  mem_device = HM_MEM_DEVICE,
  mem_threadgroup = HM_MEM_THREADGROUP,
  mem_texture = HM_MEM_TEXTURE,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
HM_FUNC constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}
HM_FUNC constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) & static_cast<uint>(b));
}

#define __METAL_MEMORY_SCOPE_SYSTEM__ 3
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system,
};

HM_FUNC void threadgroup_barrier(mem_flags flags, unsigned line = __builtin_LINE()) {
  __hm_barrier(HM_THREADGROUP, static_cast<uint>(flags), line);
}
HM_FUNC void simdgroup_barrier(mem_flags flags, unsigned line = __builtin_LINE()) {
  __hm_barrier(HM_SIMDGROUP, static_cast<uint>(flags), line);
}
// A fence orders one thread's accesses; it makes nothing visible without an atomic, so it is no barrier here.
HM_FUNC void atomic_thread_fence(mem_flags, memory_order = memory_order_seq_cst, thread_scope = thread_scope_device) {
  __hm_yield();
}

#ifdef __HAVE_EXECUTION_UNIT__
template <int N> struct execution_threads {
  static constexpr constant int simdgroups = 0;
  static constexpr constant int threads = N;
};
template <int N> struct execution_simdgroups {
  static constexpr constant int simdgroups = N;
  static constexpr constant int threads = 32 * N;
};
using execution_thread = execution_threads<1>;
using execution_simdgroup = execution_simdgroups<1>;
#endif

}  // namespace metal

#ifdef __HAVE_EXECUTION_UNIT__
namespace __hm {
template <class S> struct is_scope : metal::false_type {};
template <int N> struct is_scope<metal::execution_threads<N>> : metal::true_type {};
template <int N> struct is_scope<metal::execution_simdgroups<N>> : metal::true_type {};
}  // namespace __hm
#endif
