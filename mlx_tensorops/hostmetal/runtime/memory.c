/* Device buffers and threadgroup variables: where they live, who touched them when. */
typedef struct device_buffer {
  uintptr_t low, high, slack_low, slack_high;
  unsigned index;
  int written;                             /* may be, or was; nothing races on a buffer that is only read */
} device_buffer;
typedef struct variable { unsigned id, offset; uint64_t bytes; const char* name; } variable;

/* What is known of one byte. Threads are numbered from 1; the numbers above stand for a whole scope. */
enum { WHOLE_SIMDGROUP = 2048, WHOLE_THREADGROUP = 4096, SEVERAL_OF_SIMDGROUP = 8192, SEVERAL = 16384 };
typedef struct cell {
  uint32_t write_group, read_group;        /* threadgroup of the access, group_number; 0: none */
  uint32_t write_time, read_time;          /* clock_now at the access */
  uint32_t write_pc, read_pc;              /* offset in the module */
  uint16_t writer, reader;
  uint8_t write_atomic, read_atomic, unused[2];
} cell;

static uint8_t *region, *arena;
static size_t region_bytes;
static device_buffer buffers[HM_MAX_BUFFERS];
static unsigned buffer_count;
static cell *region_cells, *arena_cells;
static uint8_t* stack_states;              /* per byte of all stacks */
enum { ORDINARY, UNSET, SET };             /* UNSET: cooperative tensor storage without a value */
static size_t stack_states_bytes;
static variable variables[256];
static unsigned variable_count, arena_used, arena_bytes;
static void* argument_storage[HM_MAX_BUFFERS];

/* Copies the buffers side by side, far enough apart that a small overrun does not reach the next one. Each
 * ends at an unreadable page (its start keeps the alignment of the caller's pointer to 16 bytes), so that an
 * overrun in the fast build faults; the checked build has hooks and must be able to go on. */
#define BUFFER_GAP (64 * PAGE)
static int buffers_open(const hm_launch* l, int shared) {
  region_bytes = BUFFER_GAP;
  for (unsigned i = 0; i < l->buffer_count; ++i) region_bytes += (l->buffers[i].bytes + 16 + PAGE - 1) / PAGE * PAGE + BUFFER_GAP;
  region = map_memory(region_bytes, shared);
  if (!region) return 0;
  memset(buffer_addresses, 0, sizeof buffer_addresses);
  buffer_count = l->buffer_count;
  uint8_t* at = region + BUFFER_GAP;
  for (unsigned i = 0; i < buffer_count; ++i) {
    const hm_buffer* b = &l->buffers[i];
    size_t pages = (b->bytes + 16 + PAGE - 1) / PAGE * PAGE;
    uintptr_t start = (uintptr_t)at + pages - b->bytes;
    start -= (start - (uintptr_t)b->data) & 15;
    buffers[i] = (device_buffer){start, start + b->bytes, (uintptr_t)at, (uintptr_t)at + pages, b->index, b->writable};
    memset(at, 0xff, start - (uintptr_t)at);
    memcpy((void*)start, b->data, b->bytes);
    memset((void*)(start + b->bytes), 0xff, (uintptr_t)at + pages - start - b->bytes);
    buffer_addresses[b->index] = start + b->offset;
    if (!(options->flags & HM_CHECKED)) {
      mprotect(at - BUFFER_GAP, BUFFER_GAP, PROT_NONE);
      mprotect(at + pages, BUFFER_GAP, PROT_NONE);
    }
    at += pages + BUFFER_GAP;
  }
  return 1;
}
/* Bytes around a buffer that the kernel must not have written (fast build; the checked one knows at once). */
static void buffers_check(void) {
  for (unsigned i = 0; i < buffer_count; ++i) {
    const device_buffer* b = &buffers[i];
    for (const uint8_t* p = (const uint8_t*)b->slack_low; p < (const uint8_t*)b->slack_high; ++p) {
      if ((uintptr_t)p == b->low) p = (const uint8_t*)b->high;
      if (p >= (const uint8_t*)b->slack_high || *p == 0xff) continue;
      find_at(OUT_OF_BOUNDS, (place){0, 0}, (object){(int)b->index, 0, (long)((uintptr_t)p - b->low)}, -1, -1, 0,
              "a store outside buffer %u; the checked build says by which line", b->index);
      break;
    }
  }
}
static void buffers_close(const hm_launch* l) {
  for (unsigned i = 0; i < buffer_count; ++i)
    if (l->buffers[i].writable) memcpy(l->buffers[i].data, (void*)buffers[i].low, l->buffers[i].bytes);
  munmap(region, region_bytes);
  region = 0;
}

static int shadow_open(void) {
  region_cells = map_memory(region_bytes * sizeof(cell), 0);
  if (!arena_cells) arena_cells = map_memory(ARENA_BYTES * sizeof(cell), 0);
  else madvise(arena_cells, ARENA_BYTES * sizeof(cell), MADV_DONTNEED);
  if (stack_states_bytes != stack_count * STACK_BYTES) {
    if (stack_states) munmap(stack_states, stack_states_bytes);
    stack_states_bytes = stack_count * STACK_BYTES;
    stack_states = map_memory(stack_states_bytes, 0);
  } else madvise(stack_states, stack_states_bytes, MADV_DONTNEED);
  return region_cells && arena_cells && stack_states;
}
static void shadow_close(void) {
  if (region_cells) munmap(region_cells, region_bytes * sizeof(cell));
  region_cells = 0;
}

/* ---- threadgroup variables ---- */
static void* allocate(unsigned id, uint64_t bytes, uint64_t align, const char* name, uintptr_t pc) {
  if (align < 16) align = 16;
  arena_used = (arena_used + align - 1) / align * align;
  arena_bytes += (bytes + 15) / 16 * 16;
  if (arena_bytes > counters.threadgroup_bytes) counters.threadgroup_bytes = arena_bytes;
  if (arena_bytes > options->threadgroup_limit)
    find(THREADGROUP_MEMORY, pc, ((object){-1, name, 0}), this_thread(), -1, 0,
         "threadgroup memory reaches %u bytes with '%s' (%lu bytes); the limit is %u", arena_bytes, name, (unsigned long)bytes,
         options->threadgroup_limit);
  if (arena_used + bytes + ARENA_GAP > ARENA_BYTES || variable_count == 256) stop_dispatch();
  variables[variable_count++] = (variable){id, arena_used, bytes, name};
  void* p = arena + arena_used;
  memset(p, 0xff, bytes);                  /* NaN in every float type */
  arena_used += bytes + ARENA_GAP;
  return p;
}
void* __hm_threadgroup_variable(unsigned id, unsigned long bytes, unsigned long align, const char* name) {
  for (unsigned i = 0; i < variable_count; ++i)
    if (variables[i].id == id && variables[i].bytes == bytes) return arena + variables[i].offset;
  return allocate(id, bytes, align, name, (uintptr_t)__builtin_return_address(0));
}
void* __hm_threadgroup_argument(unsigned n) { return n < HM_MAX_BUFFERS ? argument_storage[n] : 0; }

static void threadgroup_memory_reset(void) {
  static const char* const names[HM_MAX_BUFFERS] = {"threadgroup(0)", "threadgroup(1)", "threadgroup(2)", "threadgroup(3)", "threadgroup(4)"};
  variable_count = arena_bytes = 0;
  arena_used = ARENA_GAP;
  for (unsigned n = 0; n < HM_MAX_BUFFERS; ++n)
    argument_storage[n] = launch->threadgroup_args[n] ? allocate(~0u - n, launch->threadgroup_args[n], 16, names[n] ? names[n] : "threadgroup(n)", 0) : 0;
}

/* ---- cooperative tensor storage, on the stacks ---- */
void __hm_cooperative_open(void* storage, unsigned bytes) {
  memset(storage, 0xff, bytes);
  size_t at = (uint8_t*)storage - stacks;
  if (checked() && at < stack_states_bytes) memset(stack_states + at, UNSET, bytes);
}
void __hm_cooperative_close(void* storage) {
  size_t at = (uint8_t*)storage - stacks;
  if (!checked()) return;
  while (at < stack_states_bytes && stack_states[at] != ORDINARY) stack_states[at++] = ORDINARY;
}

/* ---- checks on one access ---- */
static const device_buffer* nearest_buffer(uintptr_t address) {
  const device_buffer* best = 0;
  uintptr_t distance = ~(uintptr_t)0;
  for (unsigned i = 0; i < buffer_count; ++i) {
    uintptr_t d = address < buffers[i].low ? buffers[i].low - address : address >= buffers[i].high ? address - buffers[i].high : 0;
    if (d < distance) distance = d, best = &buffers[i];
  }
  return best;
}
static uintptr_t absolute(uint32_t pc) { return pc ? module.base + pc : 0; }
static int simdgroup_of(unsigned thread) {
  if (thread <= MAX_THREADS) return (thread - 1) / 32;
  if (thread >= SEVERAL_OF_SIMDGROUP && thread < SEVERAL) return thread - SEVERAL_OF_SIMDGROUP;
  if (thread >= WHOLE_SIMDGROUP && thread < WHOLE_THREADGROUP) return thread - WHOLE_SIMDGROUP;
  return -1;
}
/* Is an access by `then` at `time` over for `now`? Writer 0 is nobody: a finding was raised already. */
static int ordered(unsigned then, uint32_t time, unsigned now, int class) {
  if (!then) return 1;
  if (then == now && then < SEVERAL_OF_SIMDGROUP) return 1;
  if (time < fence[class]) return 1;
  int s = simdgroup_of(now);
  return s >= 0 && simdgroup_of(then) == s && time < simd_fence[s][class];
}
static int separated_by_other_flags(unsigned then, uint32_t time, unsigned now) {
  int s = simdgroup_of(now);
  return time < any_fence || (s >= 0 && simdgroup_of(then) == s && time < simd_any_fence[s]);
}
static const char* who(unsigned thread, char* text) {
  if (thread <= MAX_THREADS) sprintf(text, "thread %u", thread - 1);
  else if (thread >= SEVERAL) strcpy(text, "several threads");
  else if (thread >= SEVERAL_OF_SIMDGROUP) sprintf(text, "several threads of simdgroup %u", thread - SEVERAL_OF_SIMDGROUP);
  else if (thread >= WHOLE_THREADGROUP) strcpy(text, "an operation of the threadgroup");
  else sprintf(text, "an operation of simdgroup %u", thread - WHOLE_SIMDGROUP);
  return text;
}
static int reportable(unsigned thread) { return thread <= MAX_THREADS ? (int)thread - 1 : -1; }

__attribute__((noinline)) static void race(object o, int class, unsigned now, int write, unsigned then, int wrote, uint32_t time, uint32_t then_pc, uintptr_t pc) {
  char a[48], b[48], what[80];
  int flags = separated_by_other_flags(then, time, now);
  if (o.variable) snprintf(what, sizeof what, "byte %ld of threadgroup '%.40s'", o.offset, o.variable);
  else snprintf(what, sizeof what, "byte %ld of buffer %d", o.offset, o.buffer);
  find(flags ? BARRIER_FLAGS : RACE, pc, o, reportable(now), reportable(then), absolute(then_pc), "%s of %s by %s, %s by %s with %s", write ? "store" : "load",
       what, who(now, a), wrote ? "written" : "read", who(then, b),
       flags ? (class == DEVICE ? "only barriers without mem_device between" : "only barriers without mem_threadgroup between") : "no barrier between");
}

/* Follows one access of bytes cells[0..n); o.offset is that of the first. */
__attribute__((noinline)) static void follow(cell* c, unsigned n, int write, int class, object o, uintptr_t pc) {
  unsigned now = access_mode & HM_ACCESS_SIMDGROUP ? WHOLE_SIMDGROUP + __hm_cur->simdgroup
               : access_mode & HM_ACCESS_THREADGROUP ? WHOLE_THREADGROUP : __hm_cur->thread_index + 1;
  int atomic = (access_mode & HM_ACCESS_ATOMIC) != 0;
  uint32_t pc_offset = (uint32_t)(pc - module.base);
  for (unsigned i = 0; i < n; ++i, ++c, ++o.offset) {
    if (c->write_group) {
      if (c->write_group != group_number) {
        if (class == DEVICE && !(atomic && c->write_atomic)) {
          find(GROUP_RACE, pc, o, reportable(now), -1, absolute(c->write_pc), "threadgroup %u %s byte %ld of buffer %d, which threadgroup %u wrote",
               group_number - 1, write ? "writes" : "reads", o.offset, o.buffer, c->write_group - 1);
          c->write_group = 0;
          return;
        }
      } else if (!(atomic && c->write_atomic) && !ordered(c->writer, c->write_time, now, class)) {
        race(o, class, now, write, c->writer, 1, c->write_time, c->write_pc, pc);
        c->writer = now, c->write_time = clock_now, c->write_pc = pc_offset;
        return;
      }
    }
    if (!write && class == THREADGROUP && c->write_group != group_number) {
      find(UNINITIALISED, pc, o, reportable(now), -1, 0, "load of byte %ld of threadgroup '%s', which no thread has stored to", o.offset, o.variable);
      c->write_group = group_number, c->writer = 0;
      return;
    }
    if (write) {
      if (c->read_group && !(atomic && c->read_atomic)) {
        if (c->read_group != group_number) {
          if (class == DEVICE) {
            find(GROUP_RACE, pc, o, reportable(now), -1, absolute(c->read_pc), "threadgroup %u writes byte %ld of buffer %d, which threadgroup %u read",
                 group_number - 1, o.offset, o.buffer, c->read_group - 1);
            c->read_group = 0;
            return;
          }
        } else if (!ordered(c->reader, c->read_time, now, class)) {
          race(o, class, now, 1, c->reader, 0, c->read_time, c->read_pc, pc);
          c->read_group = 0;
          return;
        }
      }
      c->write_group = group_number, c->writer = now, c->write_time = clock_now, c->write_pc = pc_offset, c->write_atomic = atomic;
    } else if (c->read_group != group_number || ordered(c->reader, c->read_time, now, class)) {
      c->read_group = group_number, c->reader = now, c->read_time = clock_now, c->read_pc = pc_offset, c->read_atomic = atomic;
    } else {                               /* unordered readers: remember that there are several */
      int s = simdgroup_of(now);
      c->reader = s >= 0 && s == simdgroup_of(c->reader) ? SEVERAL_OF_SIMDGROUP + s : SEVERAL;
      c->read_time = clock_now;
      c->read_atomic &= atomic;
    }
  }
}

__attribute__((noinline)) static void access_threadgroup(uintptr_t address, unsigned n, int write, uintptr_t pc) {
  unsigned offset = address - (uintptr_t)arena;
  for (unsigned i = 0; i < variable_count; ++i) {
    const variable* v = &variables[i];
    if (offset < v->offset || offset + n > v->offset + v->bytes) continue;
    if (write) counters.threadgroup_store += n; else counters.threadgroup_load += n;
    follow(arena_cells + offset, n, write, THREADGROUP, (object){-1, v->name, (long)(offset - v->offset)}, pc);
    return;
  }
  const variable* near = 0;
  for (unsigned i = 0; i < variable_count; ++i)
    if (!near || offset >= variables[i].offset) near = &variables[i];
  object o = {-1, near ? near->name : "threadgroup memory", near ? (long)offset - (long)near->offset : (long)offset};
  find(OUT_OF_BOUNDS, pc, o, this_thread(), -1, 0, "%s of %u bytes at byte %ld of threadgroup '%s', which has %lu", write ? "store" : "load", n, o.offset,
       o.variable, near ? (unsigned long)near->bytes : 0ul);
}

__attribute__((noinline)) static void outside(uintptr_t address, unsigned n, int write, uintptr_t pc) {
  const device_buffer* near = nearest_buffer(address);
  object o = {near ? (int)near->index : -1, 0, near ? (long)(address - near->low) : 0};
  find(OUT_OF_BOUNDS, pc, o, this_thread(), -1, 0, "%s of %u bytes at byte %ld of buffer %d, which has %lu", write ? "store" : "load", n, o.offset,
       o.buffer, near ? (unsigned long)(near->high - near->low) : 0ul);
  if (write) stop_dispatch();              /* going on could overwrite a neighbour */
}
__attribute__((noinline)) static void access_device(uintptr_t address, unsigned n, int write, uintptr_t pc) {
  static device_buffer* last;
  device_buffer* b = last;
  if (!b || b >= buffers + buffer_count || address < b->low || address + n > b->high) {
    for (b = buffers; b < buffers + buffer_count; ++b) if (address >= b->low && address + n <= b->high) break;
    if (b == buffers + buffer_count) {
      outside(address, n, write, pc);
      return;
    }
    last = b;
  }
  uint64_t* count = write ? counters.device_store : access_mode & HM_ACCESS_OPAQUE ? counters.opaque_load : counters.device_load;
  count[b->index] += n;
  b->written |= write;
  if (b->written) follow(region_cells + (address - (uintptr_t)region), n, write, DEVICE, (object){(int)b->index, 0, (long)(address - b->low)}, pc);
}

__attribute__((noinline)) static void access_stack(size_t at, unsigned n, int write, uintptr_t pc) {
  uint8_t* state = stack_states + at;
  if (*state == ORDINARY) {
    if (in_operation) return;              /* the header's own structs */
    if (write) counters.thread_store += n; else counters.thread_load += n;
    return;
  }
  for (unsigned i = 0; i < n; ++i) {
    if (write) { if (state[i] == UNSET) state[i] = SET; continue; }
    if (state[i] != UNSET) continue;
    unsigned owner = at / STACK_BYTES;
    find(UNINITIALISED, pc, ((object){-1, "cooperative tensor", 0}), owner, -1, 0, "load of a cooperative tensor element that thread %u never stored to", owner);
    memset(state, SET, n);
    return;
  }
}
/* Most instrumented accesses are the headers' own look-ups: they must get through here without a call. */
static inline __attribute__((always_inline)) void access_memory(uintptr_t address, unsigned n, int write, uintptr_t pc) {
  if (!__hm_cur || access_mode & HM_ACCESS_UNCHECKED) return;
  last_pc = pc;
  if (address - (uintptr_t)stacks < stack_states_bytes) access_stack(address - (uintptr_t)stacks, n, write, pc);
  else if (address - (uintptr_t)arena < ARENA_BYTES) access_threadgroup(address, n, write, pc);
  else if (address - (uintptr_t)region < region_bytes) access_device(address, n, write, pc);
}
