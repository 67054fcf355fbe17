/* hm_dispatch: one dispatch at a time, in this process or in a child, stopped after its timeout. */
#define DEFAULT_TIMEOUT_MS 60000u
#define CHILD_GRACE_MS 3000u

/* The lock is the pid of its holder: after a fork in the middle of somebody's dispatch the child finds a
 * foreign pid and takes over. All state is set up anew by every dispatch. */
static volatile int lock_owner;
static void lock(void) {
  int me = getpid();
  for (;;) {
    int owner = 0;
    if (__atomic_compare_exchange_n(&lock_owner, &owner, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    if (owner != me && __atomic_compare_exchange_n(&lock_owner, &owner, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    nanosleep(&(struct timespec){0, 50000}, 0);
  }
}
static void unlock(void) { __atomic_store_n(&lock_owner, 0, __ATOMIC_RELEASE); }

/* ---- signals: a fault or the end of the time becomes a finding ---- */
static const int caught[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
enum { CAUGHT = sizeof caught / sizeof *caught };
static struct sigaction previous[CAUGHT], previous_timer;
static stack_t previous_stack;
static uint8_t signal_stack[64 << 10];
static int timer_signal;
static pid_t dispatch_thread;
static volatile int fatal;                 /* nothing more may run */
static volatile int running;               /* between entering the first fiber and leaving the last */
static int timer_id = -1;

static uintptr_t interrupted_pc(const void* context) {
#if defined(__x86_64__)
  return ((const ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#else
  return ((const ucontext_t*)context)->uc_mcontext.pc;
#endif
}

/* An x86 fault without an address is an unaligned operand of an aligned vector move, or a non-canonical pointer. */
static int is_aligned_move(const uint8_t* at) {
#if defined(__x86_64__)
  int operand_size = 0;
  while (*at == 0x66 || *at == 0xf2 || *at == 0xf3 || (*at & 0xf0) == 0x40) operand_size |= *at++ == 0x66;
  unsigned op;
  if (*at == 0xc5) operand_size = (at[1] & 3) == 1, op = at[2];
  else if (*at == 0xc4) operand_size = (at[2] & 3) == 1, op = at[3];
  else if (*at == 0x0f) op = at[1];
  else return 0;
  return op == 0x28 || op == 0x29 || op == 0x2b || op == 0xe7 || ((op == 0x6f || op == 0x7f) && operand_size);
#else
  (void)at;
  return 0;
#endif
}

static void on_signal(int number, siginfo_t* info, void* context) {
  if (!running || (pid_t)syscall(SYS_gettid) != dispatch_thread) {  /* not ours: as if we were not here */
    for (int i = 0; i < CAUGHT; ++i) if (caught[i] == number) sigaction(number, &previous[i], 0);
    return;
  }
  running = 0;
  fatal = 1;
  uintptr_t pc = interrupted_pc(context) + 1, address = (uintptr_t)info->si_addr;
  int me = this_thread();
  if (!place_of(pc).line) pc = last_pc;    /* inside the runtime or libm */
  if (number == timer_signal)
    find(TIMEOUT, pc, no_object, me, -1, 0, "stopped after %u ms in threadgroup %u of %lu", options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS,
         group_number, (unsigned long)launch->grid[0] * launch->grid[1] * launch->grid[2]);
  else if (number == SIGFPE) find(ARITHMETIC, pc, no_object, me, -1, 0, "integer division by zero");
  else if (number == SIGILL || number == SIGTRAP) find(CRASH, pc, no_object, me, -1, 0, "the kernel reached code that the compiler holds to be unreachable");
  else if (number == SIGSEGV && info->si_code == SI_KERNEL && is_aligned_move((const uint8_t*)interrupted_pc(context)))
    find(MISALIGNED, pc, no_object, me, -1, 0, "a vector access at an address that is no multiple of its size");
  else if (address - (uintptr_t)stacks < stack_count * STACK_BYTES)
    find(STACK_OVERFLOW, pc, no_object, me, -1, 0, "thread %d used all of its stack", me);
  else if (address - (uintptr_t)region < region_bytes) {
    const device_buffer* b = nearest_buffer(address);
    object o = {(int)b->index, 0, (long)(address - b->low)};
    find(OUT_OF_BOUNDS, pc, o, me, -1, 0, "access at byte %ld of buffer %d, which has %lu", o.offset, o.buffer, (unsigned long)(b->high - b->low));
  } else find(CRASH, pc, no_object, me, -1, 0, "access at address 0x%lx, far from every buffer", (unsigned long)address);
  stop_dispatch();
}

static void signals_open(void) {
  timer_signal = SIGRTMIN + 11;
  dispatch_thread = (pid_t)syscall(SYS_gettid);
  struct sigaction action = {0};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  /* the handler leaves by a stack switch */
  for (int i = 0; i < CAUGHT; ++i) sigaction(caught[i], &action, &previous[i]);
  sigaction(timer_signal, &action, &previous_timer);
  sigaltstack(&(stack_t){.ss_sp = signal_stack, .ss_size = sizeof signal_stack}, &previous_stack);
  unsigned ms = options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
  struct sigevent event = {0};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = timer_signal;
#ifdef sigev_notify_thread_id
  event.sigev_notify_thread_id = dispatch_thread;
#else
  event._sigev_un._tid = dispatch_thread;
#endif
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer_id)) { timer_id = -1; return; }
  struct itimerspec when = {.it_value = {ms / 1000, ms % 1000 * 1000000L}};
  syscall(SYS_timer_settime, timer_id, 0, &when, 0);
}
static void signals_close(void) {
  if (timer_id >= 0) syscall(SYS_timer_delete, timer_id);
  timer_id = -1;
  for (int i = 0; i < CAUGHT; ++i) sigaction(caught[i], &previous[i], 0);
  sigaction(timer_signal, &previous_timer, 0);
  sigaltstack(&previous_stack, 0);
}

/* ---- the loop over threadgroups ---- */
static uint64_t gcd(uint64_t a, uint64_t b) { while (b) { uint64_t t = a % b; a = b, b = t; } return a; }

static void run_grid(void) {
  unsigned total[3], groups[3];
  for (int i = 0; i < 3; ++i) {
    groups[i] = launch->grid[i];
    total[i] = launch->threads[i] ? launch->threads[i] : launch->grid[i] * launch->group[i];
  }
  uint64_t count = (uint64_t)groups[0] * groups[1] * groups[2], stride = 1, start = 0;
  if (options->order_seed && count > 1) {  /* a random affine walk visits every threadgroup once */
    start = random_next() % count;
    do stride = 1 + random_next() % count; while (gcd(stride, count) != 1);
  }
  for (uint64_t n = 0, at = start; n < count; ++n, at = (at + stride) % count) {
    unsigned position[3] = {at % groups[0], at / groups[0] % groups[1], at / groups[0] / groups[1]}, size[3];
    for (int i = 0; i < 3; ++i) size[i] = smaller(launch->group[i], total[i] - position[i] * launch->group[i]);
    group_number = (unsigned)at + 1;
    ++clock_now;                           /* accesses of the threadgroup before this one are over */
    for (int m = 0; m < MEMORY_CLASSES; ++m) fence[m] = clock_now;
    any_fence = clock_now;
    memset(simd_fence, 0, sizeof simd_fence), memset(simd_any_fence, 0, sizeof simd_any_fence);
    threadgroup_memory_reset();
    ++counters.threadgroups;
    running = 1;
    run_threadgroup(position, size, total);
    running = 0;
    __hm_cur = 0;
    if (fatal || findings->count >= finding_limit()) return;
  }
}

static void execute(void) {
  memset(&counters, 0, sizeof counters);
  fatal = 0;
  random_seed(options->order_seed);
  __hm_flags = options->flags;
  clock_now = 1;
  layouts_reset();
  if (!arena) arena = map_memory(ARENA_BYTES, 0);
  unsigned threads = launch->group[0] * launch->group[1] * launch->group[2];
  if (!arena || !stacks_reserve((threads + 31) / 32 * 32) || (checked() && !shadow_open())) {
    find(CRASH, 0, no_object, -1, -1, 0, "no memory for %u threads", threads);
    return;
  }
  signals_open();
  run_grid();
  signals_close();
  if (checked()) shadow_close(); else buffers_check();
  findings->counters = counters;
  findings->complete = 1;
}

/* The same in a child. What it finds lies in shared memory, so even a child that dies leaves it behind. */
static void execute_isolated(void) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) { execute(); return; }
  pid_t child = fork();
  if (child == 0) {
    execute();
    _exit(0);
  }
  close(ends[1]);
  if (child < 0) { close(ends[0]); execute(); return; }
  unsigned ms = (options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS) + CHILD_GRACE_MS;
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int late = 1;
  for (;;) {                               /* the pipe closes when the child ends */
    clock_gettime(CLOCK_MONOTONIC, &now);
    long spent = (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
    if (spent >= (long)ms) break;
    struct pollfd wait = {ends[0], POLLIN, 0};
    int ready = poll(&wait, 1, ms - spent);
    if (ready > 0) { late = 0; break; }
    if (ready < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (late) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (findings->complete) return;
  if (late) find(TIMEOUT, 0, no_object, -1, -1, 0, "the child did not end in %u ms and was killed", ms);
  else find(CRASH, 0, no_object, -1, -1, 0, "the child that ran the kernel died of signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static const char* senseless(const hm_launch* l, const hm_options* o) {
  uint64_t threads = (uint64_t)l->group[0] * l->group[1] * l->group[2];
  if (o->abi_version != HM_ABI_VERSION) return "abi_version is not that of this runtime";
  if (!l->entry) return "no entry";
  if (l->buffer_count > HM_MAX_BUFFERS) return "more than 31 buffers";
  for (unsigned i = 0; i < l->buffer_count; ++i) {
    if (l->buffers[i].index >= HM_MAX_BUFFERS) return "a buffer index above 30";
    if (l->buffers[i].offset > l->buffers[i].bytes) return "a buffer offset behind its end";
  }
  if (!threads || !l->grid[0] || !l->grid[1] || !l->grid[2]) return "a grid or threadgroup of size zero";
  if (threads > MAX_THREADS) return "more than 1024 threads per threadgroup";
  uint64_t layer = (uint64_t)l->grid[0] * l->grid[1];
  if (layer >= UINT32_MAX || layer * l->grid[2] >= UINT32_MAX) return "more than 2^32 - 2 threadgroups";
  for (int i = 0; i < 3; ++i) {
    if ((uint64_t)l->grid[i] * l->group[i] > UINT32_MAX) return "more than 2^32 - 1 threads along one axis";
    if (l->threads[i] && (l->threads[i] > (uint64_t)l->grid[i] * l->group[i] || l->threads[i] <= (uint64_t)(l->grid[i] - 1) * l->group[i]))
      return "threads do not agree with the grid";
  }
  return 0;
}

/* The limit that the kernel itself declares, when the caller does not know it. */
static unsigned declared_threads(const hm_launch* l) {
  if (l->max_threads || !module.path[0]) return l->max_threads;
  void* library = dlopen(module.path, RTLD_NOW | RTLD_NOLOAD);
  unsigned (*declared)(void) = 0;
  if (library) *(void**)&declared = dlsym(library, "hm_max_threads");
  unsigned limit = declared ? declared() : 0;
  if (library) dlclose(library);
  return limit;
}

int hm_dispatch(const hm_launch* l, const hm_options* o, hm_result* result) {
  const char* complaint = senseless(l, o);
  memset(&result->counters, 0, sizeof result->counters);
  result->findings = result->truncated = 0;
  result->text_bytes = 0;
  if (complaint) {
    if (result->text_capacity) result->text_bytes = snprintf(result->text, result->text_capacity, "%s", complaint);
    return -1;
  }
  lock();
  int isolated = (o->flags & HM_ISOLATED) != 0;
  launch = l, options = o;
  __hm_cur = 0;
  size_t report_bytes = sizeof(report) + result->text_capacity + 1;
  findings = map_memory(report_bytes, isolated);
  module_of((void*)l->entry);
  int code = -1;
  if (findings && buffers_open(l, isolated)) {
    findings->capacity = result->text_capacity;
    unsigned threads = l->group[0] * l->group[1] * l->group[2];
    unsigned limit = declared_threads(l);
    if (limit && threads > limit)
      find_at(THREADS, (place){0, 0}, no_object, -1, -1, 0, "%u threads per threadgroup, but the kernel declares max_total_threads_per_threadgroup(%u)", threads,
              limit);
    else if (isolated) execute_isolated();
    else execute();
    buffers_close(l);
    result->counters = findings->counters;
    result->findings = findings->count;
    result->truncated = findings->truncated;
    result->text_bytes = findings->bytes;
    if (result->text_capacity) {
      memcpy(result->text, findings->text, findings->bytes);
      result->text[findings->bytes < result->text_capacity ? findings->bytes : result->text_capacity - 1] = 0;
    }
    code = (int)findings->count;
  } else if (result->text_capacity) result->text_bytes = snprintf(result->text, result->text_capacity, "no memory for the buffers");
  if (findings) munmap(findings, report_bytes);
  findings = 0;
  unlock();
  return code;
}
