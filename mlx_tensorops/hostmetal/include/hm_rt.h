/* Between the headers that stand in for Apple's and the runtime that executes kernels.
 *
 * Read by both sides: by clang in C++ for OpenCL mode, where the toolchain includes it first in every
 * kernel (-include hm_rt.h), and by the runtime, which is C. Everything a kernel needs of the runtime is
 * here; how hosts call the runtime is hm_abi.h.
 *
 * Rules for the headers that build on this
 *   - Mark every function always_inline and nodebug (HM_FUNC): code without debug locations takes the
 *     location of its call, so an access inside a header is reported at the kernel's own line.
 *   - One operation of a simdgroup or threadgroup is one rendezvous: every thread publishes a struct on
 *     its own stack, the last to arrive does the work for all of them and releases the others.
 *         struct { T in, out; } op = {x};
 *         if (__hm_arrive(HM_SIMDGROUP, "simd_sum", line, &op)) {
 *           for (int i = 0; i < 32; ++i) if (__hm_slots[i]) ...
 *           __hm_release(HM_SIMDGROUP);
 *         }
 *     with `unsigned line = __builtin_LINE()` as the last, defaulted parameter of the public function.
 *     A null slot belongs to a thread that does not exist or has returned.
 *   - In the checked build write that struct under __hm_modes(HM_ACCESS_UNCHECKED), which __hm_arrive ends:
 *     it is no memory of the kernel's and must not be counted.
 *   - Plain loads and stores only (no __atomic builtins): one OS thread runs all of them.
 */
#ifndef HM_RT_H
#define HM_RT_H

#ifdef __OPENCL_CPP_VERSION__
#define HM_KERNEL_SIDE 1
#define HM_TEXT const __constant char*
#else
#define HM_KERNEL_SIDE 0
#define HM_TEXT const char*
#endif

/* ---- scopes of a rendezvous ---- */
#define HM_SIMDGROUP 0u
#define HM_THREADGROUP 1u
#define HM_QUADGROUP 2u
#define HM_SCOPE_MASK 3u
/* The operation needs exactly n whole simdgroups (n = 1 with HM_SIMDGROUP; with HM_THREADGROUP the
 * threadgroup must have 32 * n threads, all of them still running). */
#define HM_WHOLE(n) ((unsigned)(n) << 8)

/* ---- mem_flags, the values of metal::mem_flags ---- */
#define HM_MEM_NONE 0u
#define HM_MEM_DEVICE 1u
#define HM_MEM_THREADGROUP 2u
#define HM_MEM_TEXTURE 4u

/* ---- counters (see hm_counters in hm_abi.h; barriers count themselves) ---- */
#define HM_COUNT_MATMUL2D 0u
#define HM_COUNT_MACS 1u
#define HM_COUNT_MMA8X8 2u
#define HM_COUNT_SIMD_OPS 3u

/* ---- adversary switches, bits of __hm_flags; the same values as hm_flag in hm_abi.h ---- */
#define HM_RT_CHECKED 1u
#define HM_RT_TRUNCATE_F32 4u
#define HM_RT_FLUSH_HALF 8u
#define HM_RT_MULTIPLY_ACCUMULATES 16u

/* ---- lane maps of cooperative tensors ---- */
#define HM_LEFT 0u
#define HM_RIGHT 1u
#define HM_DESTINATION 2u
#define HM_NO_ELEMENT 0xffffffffu
#define HM_PADDING 4               /* most slots a layout may add to a thread's share */
/* Storage that a thread's share of a rows x cols tile needs under every layout. */
#define HM_SLOTS(rows, cols, simdgroups) \
  (((rows) * (cols) + 32 * (simdgroups)-1) / (32 * (simdgroups)) + HM_PADDING)

/* ---- what __hm_modes says about accesses until it is called again; a set of bits ---- */
#define HM_ACCESS_PLAIN 0u
#define HM_ACCESS_OPAQUE 1u        /* device loads count as opaque_load, not device_load */
#define HM_ACCESS_SIMDGROUP 2u     /* the whole simdgroup accesses, not one thread: no thread may race with it */
#define HM_ACCESS_THREADGROUP 4u   /* likewise the whole threadgroup */
#define HM_ACCESS_ATOMIC 8u        /* does not race with other atomic accesses */
#define HM_ACCESS_UNCHECKED 16u    /* neither checked nor counted: the header's own bookkeeping */

/* ---- kinds of finding that headers raise with __hm_finding ---- */
#define HM_FIND_CAPACITY 0u        /* index past the capacity of a cooperative tensor */
#define HM_FIND_EXTENT 1u          /* tensor access outside its extents where the API does not check */
#define HM_FIND_INVALID_SLOT 2u    /* use of a slot that is no matrix element */
#define HM_FIND_ARGUMENT 3u        /* run-time argument that the API forbids (shuffle mask not uniform, ...) */
#define HM_FIND_UNINITIALISED 4u
#define HM_FIND_MISALIGNED 5u
#define HM_FATAL 256u              /* added to a kind: stop the dispatch here */

#if !HM_KERNEL_SIDE
#include <stdint.h>
#endif

/* Built-in values of the running thread. */
typedef struct __hm_lane {
  unsigned lane;                   /* thread_index_in_simdgroup */
  unsigned simdgroup;              /* simdgroup_index_in_threadgroup */
  unsigned thread_index;           /* thread_index_in_threadgroup */
  unsigned simdgroups;             /* simdgroups_per_threadgroup of this threadgroup */
  unsigned thread_position[3];     /* thread_position_in_threadgroup */
  unsigned group_position[3];      /* threadgroup_position_in_grid */
  unsigned group_size[3];          /* threads_per_threadgroup of this threadgroup (edges may be smaller) */
  unsigned full_group_size[3];     /* dispatch_threads_per_threadgroup */
  unsigned groups[3];              /* threadgroups_per_grid */
  unsigned threads[3];             /* threads_per_grid */
} __hm_lane;

/* Where the elements of a tile live: coord[thread * capacity + slot] = column | row << 16 in the space in
 * which the operand is stored, or HM_NO_ELEMENT. thread = lane + 32 * simdgroup. Chosen at run time, so
 * another layout compiles nothing. */
typedef struct __hm_layout {
  unsigned capacity, rows, cols, simdgroups;
#if HM_KERNEL_SIDE
  const __global unsigned* coord;
#else
  const unsigned* coord;
#endif
} __hm_layout;

#if HM_KERNEL_SIDE
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
extern "C" {
extern __hm_lane* __hm_cur;        /* the running thread */
extern void** __hm_slots;          /* arguments of the rendezvous in flight: [lane], [thread_index] or [lane & 3] */
#else
extern __hm_lane* __hm_cur;
extern void** __hm_slots;
#endif
extern unsigned __hm_flags;        /* HM_RT_* of this dispatch */

/* Whether a call is reached depends on nothing but the source: the compiler may not move it into a branch. */
#if HM_KERNEL_SIDE
#define HM_CONVERGENT __attribute__((convergent))
#define HM_CONST __attribute__((const))
#else
#define HM_CONVERGENT
#define HM_CONST
#endif

/* 1: every thread of the scope is here and the caller must do the operation, then __hm_release(scope).
 * Threads that meet with different names or lines are a divergence finding; it does not return then. */
HM_CONVERGENT int __hm_arrive(unsigned scope, HM_TEXT name, unsigned line, void* argument);
HM_CONVERGENT void __hm_release(unsigned scope);

/* threadgroup_barrier / simdgroup_barrier. */
HM_CONVERGENT void __hm_barrier(unsigned scope, unsigned mem_flags, unsigned line);

/* A point where another thread may run (atomics): does nothing unless the order is seeded. */
HM_CONVERGENT void __hm_yield(void);

/* Storage of a threadgroup variable: the same address for all threads of a threadgroup. */
void* __hm_threadgroup_variable(unsigned id, unsigned long bytes, unsigned long align, HM_TEXT name);
/* Address of [[threadgroup(n)]]. */
void* __hm_threadgroup_argument(unsigned n);

/* The lane map. element_bytes: size of one element. strict: f32 operands without relaxed precision. The
 * result lives until the dispatch ends and depends on the arguments alone, so calls may be merged. */
#if HM_KERNEL_SIDE
HM_CONST const __global __hm_layout* __hm_layout_of(unsigned role, unsigned rows, unsigned cols, unsigned simdgroups,
                                                    unsigned element_bytes, unsigned strict);
#else
const __hm_layout* __hm_layout_of(unsigned role, unsigned rows, unsigned cols, unsigned simdgroups,
                                  unsigned element_bytes, unsigned strict);
#endif

/* Storage of a cooperative tensor comes alive: filled with 0xff bytes (NaN in every float type) and, in
 * the checked build, uninitialised until stored to. Close it in the destructor (checked build only:
 * `#if HM_CHECKED_BUILD`). */
void __hm_cooperative_open(void* storage, unsigned bytes);
void __hm_cooperative_close(void* storage);

void __hm_count(unsigned counter, unsigned long n);
void __hm_modes(unsigned access);  /* HM_ACCESS_*; __hm_arrive, __hm_release and barriers reset it to plain */

/* text may hold %ld twice, for a and b; it states the rule that was broken. */
void __hm_finding(unsigned kind, unsigned line, HM_TEXT text, long a, long b);

#if HM_KERNEL_SIDE
}

#ifndef HM_CHECKED_BUILD
#define HM_CHECKED_BUILD 0         /* the checked build passes -DHM_CHECKED_BUILD=1 */
#endif
/* Without checks of its own: those of alignment and bounds belong where the kernel makes the access. */
#define HM_FUNC inline __attribute__((always_inline, nodebug, no_sanitize("alignment", "array-bounds")))

/* The language's address spaces; real and checked in this front end. */
#define device __global
#define threadgroup __local
#define constant __constant
#define thread __private
#define kernel

/* Beside the value of each function constant stands whether it was given: #define __HM_FC_HAS_name 1. */
#define is_function_constant_defined(name) __HM_FC_HAS_##name

namespace metal {
template <class T, int N> struct vec;   /* the headers define it: vec<T, N>(x, y, ...) */
}

/* Targets of the source rewrite and of the generated entry. */
namespace __hm {
template <class T, unsigned Id> HM_FUNC threadgroup T& threadgroup_variable(const __constant char* name) {
  return *(threadgroup T*)__hm_threadgroup_variable(Id, sizeof(T), alignof(T) < 16 ? 16 : alignof(T), name);
}

// A struct out of constant memory: implicit copy constructors take objects of every address space but that one.
template <class T> HM_FUNC T copy_of_constant(const __constant T* from) {
  T copy;
  const __constant unsigned char* bytes = (const __constant unsigned char*)from;
  for (unsigned i = 0; i < sizeof(T); ++i) ((__private unsigned char*)&copy)[i] = bytes[i];
  return copy;
}

template <int I, class T, class... P> struct nth { using type = typename nth<I - 1, P...>::type; };
template <class T, class... P> struct nth<0, T, P...> { using type = T; };
template <class F> struct parameters;
template <class... P> struct parameters<void(P...)> {
  template <int I> using at = typename nth<I, P...>::type;
};

template <class T> struct argument {};
template <class T> struct argument<T*> {
  static HM_FUNC T* from(unsigned long address) { return (T*)address; }
};
template <class T> struct argument<T&> {
  static HM_FUNC T& from(unsigned long address) { return *(T*)address; }
};

/* A built-in value in the type in which the kernel declares it: scalar, 2- or 3-vector. */
template <class T> struct builtin {
  static HM_FUNC T from(unsigned x, unsigned, unsigned) { return T(x); }
};
template <class S> struct builtin<metal::vec<S, 2>> {
  static HM_FUNC metal::vec<S, 2> from(unsigned x, unsigned y, unsigned) { return metal::vec<S, 2>(S(x), S(y)); }
};
template <class S> struct builtin<metal::vec<S, 3>> {
  static HM_FUNC metal::vec<S, 3> from(unsigned x, unsigned y, unsigned z) {
    return metal::vec<S, 3>(S(x), S(y), S(z));
  }
};
}
#endif
#endif
