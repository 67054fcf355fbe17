/* The threads of a threadgroup: one fiber each, all on one OS thread, and the places where they meet. */
static uint8_t* stacks;
static size_t stack_count;
static void* slot_storage[MAX_THREADS * 3];
static rendezvous whole_group, simdgroups[MAX_SIMDGROUPS], quads[MAX_THREADS / 4];
static unsigned order[MAX_SIMDGROUPS];
static void fiber_main(void);

/* Saves the callee-saved registers and the stack pointer, takes those of `to`. */
void hm_switch(void** save, void* to);
#if defined(__x86_64__)
__asm__(".text\n.globl hm_switch\n.hidden hm_switch\n.type hm_switch,@function\nhm_switch:\n"
        " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        " movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
        " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n.size hm_switch,.-hm_switch\n");
static void* fresh_stack(uintptr_t top) {
  uint64_t* sp = (uint64_t*)(top & ~(uintptr_t)15);
  *--sp = 0;                               /* keeps the ABI's alignment at entry */
  *--sp = (uint64_t)fiber_main;
  for (int i = 0; i < 6; ++i) *--sp = 0;
  return sp;
}
#elif defined(__aarch64__)
__asm__(".text\n.globl hm_switch\n.hidden hm_switch\n.type hm_switch,%function\nhm_switch:\n"
        " sub sp,sp,#160\n stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n"
        " stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n"
        " stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
        " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
        " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
        " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n.size hm_switch,.-hm_switch\n");
static void* fresh_stack(uintptr_t top) {
  uint64_t* sp = (uint64_t*)((top & ~(uintptr_t)15) - 160);
  memset(sp, 0, 160);
  sp[11] = (uint64_t)fiber_main;           /* x30 */
  return sp;
}
#else
#error "hostmetal runs on x86-64 and aarch64"
#endif

static int stacks_reserve(size_t count) {
  if (stack_count >= count) return 1;
  if (stacks) munmap(stacks, stack_count * STACK_BYTES);
  stack_count = 0;
  stacks = map_memory(count * STACK_BYTES, 0);
  if (!stacks) return 0;
  for (size_t i = 0; i < count; ++i) mprotect(stacks + i * STACK_BYTES, PAGE, PROT_NONE);
  stack_count = count;
  return 1;
}

__attribute__((noreturn)) static void stop_dispatch(void) {
  void* unused;
  __hm_cur = 0;
  in_operation = 0;
  hm_switch(&unused, main_sp);
  __builtin_unreachable();
}

static rendezvous* meeting(const fiber* f, unsigned scope) {
  switch (scope & HM_SCOPE_MASK) {
    case HM_THREADGROUP: return &whole_group;
    case HM_QUADGROUP: return &quads[f->in.thread_index / 4];
    default: return &simdgroups[f->in.simdgroup];
  }
}
static const char* scope_name(unsigned scope) {
  static const char* const names[] = {"simdgroup", "threadgroup", "quadgroup", "scope"};
  return names[scope & HM_SCOPE_MASK];
}

static unsigned pick_lane(uint32_t mask) {
  if (!options->order_seed) return __builtin_ctz(mask);
  unsigned turn = random_next() & 31;
  return (__builtin_ctz(turn ? mask >> turn | mask << (32 - turn) : mask) + turn) & 31;
}
static fiber* next_fiber(void) {
  unsigned own = __hm_cur ? __hm_cur->simdgroup : 0;
  if (runnable[own]) return &fibers[own * 32 + pick_lane(runnable[own])];
  for (unsigned i = 0; i < simdgroup_count; ++i)
    if (runnable[order[i]]) return &fibers[order[i] * 32 + pick_lane(runnable[order[i]])];
  return 0;
}
static void set_runnable(const fiber* f) { runnable[f->in.simdgroup] |= 1u << f->in.lane; }
static void set_blocked(const fiber* f) { runnable[f->in.simdgroup] &= ~(1u << f->in.lane); }

/* No thread can run: say who waits where. */
__attribute__((noreturn)) static void deadlock(void) {
  char text[400];
  int used = 0, returned = 0, first = -1;
  uintptr_t other_pc = 0;
  for (unsigned i = 0; i < thread_count; ++i) {
    fiber* f = &fibers[i];
    if (f->done) { ++returned; continue; }
    if (first < 0) first = i;
    if (f->wait_line != fibers[first].wait_line) other_pc = f->wait_pc;
    if (i % 32 && !fibers[i - 1].done && fibers[i - 1].wait_line == f->wait_line && fibers[i - 1].wait_name == f->wait_name) continue;
    if (used < 300) used += snprintf(text + used, sizeof text - used, "%s from thread %u: %s at line %u", used ? ";" : "", i, f->wait_name, f->wait_line);
  }
  if (first < 0) first = 0, used = snprintf(text, sizeof text, " none");
  place at = place_of(fibers[first].wait_pc);
  if (fibers[first].wait_line) at.line = fibers[first].wait_line;
  __hm_cur = &fibers[first].in;
  find_at(DEADLOCK, at, no_object, first, -1, other_pc, "no thread can run:%s; %d threads returned", text, returned);
  stop_dispatch();
}

static void run_other(fiber* me) {
  fiber* next = next_fiber();
  if (!next) deadlock();
  if (next == me) return;
  __hm_cur = &next->in;
  hm_switch(&me->sp, next->sp);
}

static void wake_all(rendezvous* r) {
  r->arrived = 0;
  for (unsigned i = 0; i < r->size; ++i) {
    fiber* f = &fibers[r->first + i];
    if (!f->done) set_runnable(f);
  }
}

static void diverged(fiber* me, rendezvous* r, const char* name, unsigned line, uintptr_t pc, unsigned scope) {
  place at = place_of(pc);
  if (line) at.line = line;
  unsigned waiting = r->first;
  for (unsigned i = 0; i < r->size; ++i) if (r->slots[i]) { waiting = r->first + i; break; }
  find_at(DIVERGENCE, at, no_object, me->in.thread_index, waiting, r->pc,
          "thread %u is at %s, line %u, while %u threads of its %s wait at %s, line %u", me->in.thread_index, name, line,
          r->arrived, scope_name(scope), r->name, r->line);
  stop_dispatch();
}

static int is_barrier(const char* name) { return name[0] && strstr(name, "_barrier") != 0; }

/* Enough threads of the scope exist and still run; else a finding. */
static void require_whole(fiber* me, rendezvous* r, const char* name, unsigned line, uintptr_t pc, unsigned scope) {
  place at = place_of(pc);
  if (line) at.line = line;
  unsigned wanted = scope >> 8 ? 32 * (scope >> 8) : 0;
  if (wanted && r->size != wanted) {
    find_at(SCOPE_THREADS, at, no_object, me->in.thread_index, -1, 0, "%s runs on a scope of %u threads but its %s has %u", name, wanted,
            scope_name(scope), r->size);
    stop_dispatch();
  }
  if ((wanted || is_barrier(name)) && r->live < r->size) {
    find_at(DIVERGENCE, at, no_object, me->in.thread_index, -1, 0, "%s is reached after %u of the %u threads of the %s returned", name,
            r->size - r->live, r->size, scope_name(scope));
    if (wanted) stop_dispatch();
  }
}

static int arrive(unsigned scope, const char* name, unsigned line, void* argument, uintptr_t pc) {
  fiber* me = current();
  rendezvous* r = meeting(me, scope);
  me->wait_scope = scope, me->wait_name = name, me->wait_line = line, me->wait_pc = pc;
  access_mode = HM_ACCESS_PLAIN;
  last_pc = pc;
  if (!r->arrived) {
    r->name = name, r->line = line, r->pc = pc;
    memset(r->slots, 0, r->size * sizeof(void*));
  } else if (r->line != line || (r->name != name && strcmp(r->name, name))) diverged(me, r, name, line, pc, scope);
  if (scope >> 8 || r->live < r->size) require_whole(me, r, name, line, pc, scope);
  r->slots[me->in.thread_index - r->first] = argument;
  if (++r->arrived < r->live) {
    me->chosen = 0;
    set_blocked(me);
    run_other(me);
    if (!me->chosen) return 0;
  }
  __hm_slots = r->slots;
  in_operation = 1;
  return 1;
}

int __hm_arrive(unsigned scope, const char* name, unsigned line, void* argument) {
  return arrive(scope, name, line, argument, (uintptr_t)__builtin_return_address(0));
}
void __hm_release(unsigned scope) {
  in_operation = 0;
  access_mode = HM_ACCESS_PLAIN;
  wake_all(meeting(current(), scope));
}

void __hm_barrier(unsigned scope, unsigned flags, unsigned line) {
  int group = (scope & HM_SCOPE_MASK) == HM_THREADGROUP;
  if (!arrive(scope, group ? "threadgroup_barrier" : "simdgroup_barrier", line, (void*)1, (uintptr_t)__builtin_return_address(0))) return;
  unsigned own = __hm_cur->simdgroup;
  ++clock_now;
  if (group) any_fence = clock_now, ++counters.barriers;
  else simd_any_fence[own] = clock_now, ++counters.simdgroup_barriers;
  uint32_t* fences = group ? fence : simd_fence[own];
  if (flags & HM_MEM_DEVICE) fences[DEVICE] = clock_now;
  if (flags & HM_MEM_THREADGROUP) fences[THREADGROUP] = clock_now;
  __hm_release(scope);
}

void __hm_yield(void) {
  if (options->order_seed && !in_operation) run_other(current());
}

void __hm_count(unsigned counter, unsigned long n) {
  uint64_t* const at[] = {&counters.matmul2d, &counters.macs, &counters.mma8x8, &counters.simd_ops};
  if (counter < 4) *at[counter] += n;
}
void __hm_modes(unsigned access) { access_mode = access; }

/* A thread returned: the rest of its groups may now be complete. */
static void left(rendezvous* r) {
  --r->live;
  if (!r->arrived || r->arrived < r->live) return;
  for (unsigned i = 0; i < r->size; ++i) {
    if (!r->slots[i]) continue;
    fiber* f = &fibers[r->first + i];
    require_whole(f, r, f->wait_name, f->wait_line, f->wait_pc, f->wait_scope);
    f->chosen = 1;                         /* it does the operation for those that are left */
    set_runnable(f);
    return;
  }
}
static void fiber_main(void) {
  launch->entry(buffer_addresses);
  fiber* me = current();
  me->done = 1;
  set_blocked(me);
  left(&quads[me->in.thread_index / 4]);
  left(&simdgroups[me->in.simdgroup]);
  left(&whole_group);
  fiber* next = next_fiber();
  if (!next) {
    if (whole_group.live) deadlock();
    stop_dispatch();                       /* the threadgroup ended */
  }
  void* unused;
  __hm_cur = &next->in;
  hm_switch(&unused, next->sp);
  __builtin_unreachable();
}

static void prepare(rendezvous* r, unsigned first, unsigned size, void** slots) {
  *r = (rendezvous){.size = size, .live = size, .first = first, .slots = slots};
}
static unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

/* Runs one threadgroup of size[0] * size[1] * size[2] threads to its end, or until it is stopped. */
static void run_threadgroup(const unsigned* position, const unsigned* size, const unsigned* total) {
  thread_count = size[0] * size[1] * size[2];
  simdgroup_count = (thread_count + 31) / 32;
  prepare(&whole_group, 0, thread_count, slot_storage);
  for (unsigned i = 0; i < simdgroup_count; ++i) {
    prepare(&simdgroups[i], i * 32, smaller(32, thread_count - i * 32), slot_storage + MAX_THREADS + i * 32);
    runnable[i] = simdgroups[i].size == 32 ? ~0u : (1u << simdgroups[i].size) - 1;
    order[i] = i;
  }
  for (unsigned i = 0; i * 4 < thread_count; ++i) prepare(&quads[i], i * 4, smaller(4, thread_count - i * 4), slot_storage + 2 * MAX_THREADS + i * 4);
  if (options->order_seed)
    for (unsigned i = simdgroup_count; i > 1; --i) {
      unsigned j = random_next() % i, t = order[i - 1];
      order[i - 1] = order[j], order[j] = t;
    }
  for (unsigned t = 0; t < thread_count; ++t) {
    fiber* f = &fibers[t];
    f->done = f->chosen = 0;
    f->wait_line = 0, f->wait_name = "start", f->wait_pc = 0, f->wait_scope = 0;
    f->in = (__hm_lane){.lane = t & 31, .simdgroup = t >> 5, .thread_index = t, .simdgroups = simdgroup_count,
                        .thread_position = {t % size[0], t / size[0] % size[1], t / size[0] / size[1]}};
    memcpy(f->in.group_position, position, 12), memcpy(f->in.group_size, size, 12);
    memcpy(f->in.full_group_size, launch->group, 12), memcpy(f->in.groups, launch->grid, 12), memcpy(f->in.threads, total, 12);
    /* Tops are staggered, else all stacks share the same cache sets. */
    f->sp = fresh_stack((uintptr_t)stacks + (t + 1) * STACK_BYTES - 64 - (t * 1088 & 0x3fc0));
  }
  __hm_cur = 0;
  in_operation = 0;
  access_mode = HM_ACCESS_PLAIN;
  fiber* first = &fibers[order[0] * 32 + pick_lane(runnable[order[0]])];
  __hm_cur = &first->in;
  hm_switch(&main_sp, first->sp);
}
