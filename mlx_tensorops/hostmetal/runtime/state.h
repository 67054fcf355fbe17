/* Shared state of one dispatch. One dispatch runs at a time (dispatch.c holds the lock), on one OS thread. */
#ifndef HM_STATE_H
#define HM_STATE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "../include/hm_rt.h"
#include "hm_abi.h"

#define MAX_THREADS 1024u            /* per threadgroup, on every Apple GPU since A11 */
#define MAX_SIMDGROUPS (MAX_THREADS / 32)
#define STACK_BYTES ((size_t)512 << 10)
#define PAGE ((size_t)4096)
#define ARENA_BYTES ((size_t)4 << 20)
#define ARENA_GAP 64u                /* unowned bytes between threadgroup variables */

/* One thread of the threadgroup. `in` is first: __hm_cur points at it. */
typedef struct fiber {
  __hm_lane in;
  void* sp;
  uint8_t done, chosen;              /* chosen: woken to do the operation of its rendezvous */
  unsigned wait_scope, wait_line;
  const char* wait_name;
  uintptr_t wait_pc;
} fiber;

/* Threads of one scope that meet. */
typedef struct rendezvous {
  unsigned size, live, arrived, line;
  unsigned first;                    /* thread_index of slot 0 */
  const char* name;
  uintptr_t pc;
  void** slots;
} rendezvous;

static fiber fibers[MAX_THREADS];
static unsigned thread_count, simdgroup_count;
static uint32_t runnable[MAX_SIMDGROUPS];

static const hm_launch* launch;
static const hm_options* options;
static hm_counters counters;
static unsigned group_number;        /* 1 + linear index of the running threadgroup */
static void* main_sp;                /* where the dispatch loop continues */
static uint64_t random_state;

/* Happens-before inside a threadgroup: the clock advances at every barrier; an access is ordered before
 * now when its time is below the fence of its memory class. */
enum { DEVICE, THREADGROUP, MEMORY_CLASSES };
static uint32_t clock_now, fence[MEMORY_CLASSES], any_fence;
static uint32_t simd_fence[MAX_SIMDGROUPS][MEMORY_CLASSES], simd_any_fence[MAX_SIMDGROUPS];

static uint64_t buffer_addresses[HM_MAX_BUFFERS + 1];  /* what the kernel gets: address of [[buffer(n)]] */
static uintptr_t last_pc;            /* last place in the kernel from which the runtime was called */
static unsigned access_mode;         /* HM_ACCESS_* */
static int in_operation;             /* between an arrive that returned 1 and its release */

__hm_lane* __hm_cur;
void** __hm_slots;
unsigned __hm_flags;

static inline fiber* current(void) { return (fiber*)__hm_cur; }
static inline int checked(void) { return (__hm_flags & HM_CHECKED) != 0; }

static uint64_t random_next(void) {  /* xorshift64 */
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static void random_seed(uint64_t seed) { random_state = (seed + 1) * 0x9E3779B97F4A7C15ull | 1; }

static void* map_memory(size_t bytes, int shared) {
  void* p = mmap(0, bytes, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : p;
}

__attribute__((noreturn)) static void stop_dispatch(void);
#endif
