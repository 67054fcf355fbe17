/* The C ABI of the Metal emulator: how anyone (ctypes, a node of an MLX graph) runs one compiled kernel.
 *
 * Plain C, no allocation crosses it, no Python is needed to call it. The runtime (rt.c) implements
 * hm_dispatch; a compiled kernel exports one hm_entry. Bump HM_ABI_VERSION when any struct changes. */
#ifndef HM_ABI_H
#define HM_ABI_H
#include <stdint.h>

#define HM_ABI_VERSION 1u
#define HM_MAX_BUFFERS 31      /* buffer argument table of every Apple GPU family */

#ifdef __cplusplus
extern "C" {
#endif

/* Runs one thread of the kernel. buffers[n] is the address of [[buffer(n)]], already emulated. */
typedef void (*hm_entry)(uint64_t* buffers);

/* One buffer argument. The kernel may touch bytes [data, data + bytes) and nothing else; its pointer
 * starts at data + offset (offset > 0 when negative strides reach below the base). */
typedef struct hm_buffer {
  void* data;
  uint64_t bytes;
  uint64_t offset;
  uint32_t index;              /* n of [[buffer(n)]] */
  uint32_t writable;           /* 1: bytes are copied back after the dispatch */
} hm_buffer;

enum hm_layout {               /* lane maps of cooperative tensors that kernels have been seen to assume */
  HM_LAYOUT_NAX = 0,           /* M5-class */
  HM_LAYOUT_STRICT = 1,        /* f32 operands without relaxed precision, GPUs before M5 */
  HM_LAYOUT_PERMUTED = 2,      /* a legal bijection drawn from layout_seed */
  HM_LAYOUT_PADDED = 3         /* PERMUTED with extra slots that are not matrix elements */
};

enum hm_flag {
  HM_CHECKED = 1u << 0,        /* the kernel was built with access hooks: keep shadow state */
  HM_ISOLATED = 1u << 1,       /* run in a child process: a crash or a hang becomes a finding */
  HM_TRUNCATE_F32 = 1u << 2,   /* relaxed f32 operands keep 11 significant bits, as an M5 may do */
  HM_FLUSH_HALF = 1u << 3,     /* half subnormals read as zero */
  HM_MULTIPLY_ACCUMULATES = 1u << 4  /* mode::multiply adds to the destination (undecided on hardware) */
};

typedef struct hm_options {
  uint32_t abi_version;        /* HM_ABI_VERSION */
  uint32_t flags;              /* hm_flag */
  uint32_t layout;             /* hm_layout */
  uint32_t threadgroup_limit;  /* bytes; 32768 on every GPU this project targets */
  uint64_t layout_seed;
  uint64_t order_seed;         /* 0: threadgroups, simdgroups and lanes in index order */
  uint32_t timeout_ms;         /* whole dispatch; 0 means 60000 */
  uint32_t max_findings;       /* stop collecting after this many; 0 means 16 */
} hm_options;

typedef struct hm_launch {
  hm_entry entry;
  const char* kernel;          /* name for findings */
  const hm_buffer* buffers;
  uint32_t buffer_count;
  uint32_t grid[3];            /* threadgroups */
  uint32_t group[3];           /* threads per threadgroup */
  uint32_t threads[3];         /* 0,0,0: grid * group. Else the total, and edge threadgroups are partial */
  uint32_t max_threads;        /* max_total_threads_per_threadgroup of the kernel; 0: not declared */
  uint32_t threadgroup_args[HM_MAX_BUFFERS];  /* bytes of each [[threadgroup(n)]] */
} hm_launch;

typedef struct hm_counters {
  uint64_t matmul2d;           /* run() calls, one per execution scope */
  uint64_t macs;               /* multiply-adds inside matmul2d and simdgroup_matrix */
  uint64_t mma8x8;             /* simdgroup_multiply(_accumulate) calls */
  uint64_t barriers;           /* threadgroup_barrier arrivals, one per threadgroup */
  uint64_t simdgroup_barriers; /* likewise, one per simdgroup */
  uint64_t simd_ops;           /* simd_*, quad_*: one per simdgroup */
  uint64_t threadgroups;
  uint64_t threadgroup_bytes;  /* most that one threadgroup allocated */
  /* The rest needs HM_CHECKED and is 0 without it. */
  uint64_t threadgroup_load, threadgroup_store;
  uint64_t thread_load, thread_store;
  uint64_t device_load[HM_MAX_BUFFERS], device_store[HM_MAX_BUFFERS];
  uint64_t opaque_load[HM_MAX_BUFFERS];  /* lower bound of what run() and load() read from tensor operands */
} hm_counters;

typedef struct hm_result {
  hm_counters counters;
  uint32_t findings;           /* number of findings, also those beyond max_findings */
  uint32_t truncated;          /* 1: text did not fit */
  uint64_t text_capacity;      /* in: bytes at text */
  uint64_t text_bytes;         /* out: bytes used, without the final 0 */
  char* text;                  /* out: one JSON object per line, the fields of hostmetal.Finding */
} hm_result;

/* Returns the number of findings (0: clean), or -1 when the arguments make no sense (text says why). */
typedef int (*hm_dispatch_fn)(const hm_launch*, const hm_options*, hm_result*);
int hm_dispatch(const hm_launch* launch, const hm_options* options, hm_result* result);

#ifdef __cplusplus
}
#endif
#endif
