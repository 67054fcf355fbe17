/* What a dispatch did wrong, one JSON object per line: the fields of hostmetal.Finding. */
typedef enum kind {
  OUT_OF_BOUNDS, MISALIGNED, RACE, BARRIER_FLAGS, GROUP_RACE, UNINITIALISED, LOCAL_OVERRUN, CAPACITY, EXTENT,
  INVALID_SLOT, ARGUMENT, DIVERGENCE, DEADLOCK, SCOPE_THREADS, THREADGROUP_MEMORY, THREADS, STACK_OVERFLOW,
  ARITHMETIC, TIMEOUT, CRASH, KIND_COUNT
} kind;

static const struct { const char *name, *rule; } kinds[KIND_COUNT] = {
  [OUT_OF_BOUNDS] = {"out_of_bounds", "A kernel may touch only the bytes of the buffers and threadgroup variables that it was given."},
  [MISALIGNED] = {"misaligned", "A pointer must be aligned to its type (MSL specification, tables of vector alignment)."},
  [RACE] = {"race", "Two threads of a threadgroup that touch one byte, one of them writing, need a barrier between them."},
  [BARRIER_FLAGS] = {"barrier_flags", "A barrier orders only the memory that its mem_flags name."},
  [GROUP_RACE] = {"group_race", "Threadgroups of one dispatch have no order: no byte may be written by one and touched by another without atomics."},
  [UNINITIALISED] = {"uninitialised", "Threadgroup memory and cooperative tensors hold nothing until the kernel stores to them."},
  [LOCAL_OVERRUN] = {"local_overrun", "An index must lie inside its array."},
  [CAPACITY] = {"capacity", "A cooperative tensor has get_capacity() elements per thread."},
  [EXTENT] = {"extent", "An operation that does not check bounds must stay inside the extents of its tensors."},
  [INVALID_SLOT] = {"invalid_slot", "A slot for which is_valid_element is false is no matrix element."},
  [ARGUMENT] = {"argument", "The argument is outside what the operation accepts."},
  [DIVERGENCE] = {"divergence", "All threads of the scope must reach the same operation."},
  [DEADLOCK] = {"deadlock", "Every thread waits for threads that will not come."},
  [SCOPE_THREADS] = {"scope_threads", "matmul2d with execution_simdgroups<N> needs exactly 32 * N threads."},
  [THREADGROUP_MEMORY] = {"threadgroup_memory", "A threadgroup has 32768 bytes of threadgroup memory."},
  [THREADS] = {"threads", "A dispatch may not exceed the threads per threadgroup that the kernel declares."},
  [STACK_OVERFLOW] = {"stack_overflow", "A thread's private memory is bounded; the emulator gives it 512 KiB."},
  [ARITHMETIC] = {"arithmetic", "Integer division by zero is undefined."},
  [TIMEOUT] = {"timeout", "A dispatch must end; the emulator stops it after its timeout."},
  [CRASH] = {"crash", "The kernel touched memory that belongs to no buffer."},
};

typedef struct object {              /* what was touched */
  int buffer;                        /* index of [[buffer(n)]], or -1 */
  const char* variable;              /* threadgroup variable, or null */
  long offset;                       /* bytes from its start */
} object;
static const object no_object = {-1, 0, 0};

/* Lives in memory shared with the child in isolated mode. */
typedef struct report {
  uint32_t count, truncated, complete;
  uint64_t bytes, capacity;
  uint32_t key_count;
  struct { uint32_t kind, line; int buffer; const char* variable; } keys[256];
  hm_counters counters;
  char text[];
} report;
static report* findings;

static unsigned finding_limit(void) { return options->max_findings ? options->max_findings : 16; }

static void put(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t left = findings->capacity - findings->bytes;
  int n = vsnprintf(findings->text + findings->bytes, left, format, arguments);
  va_end(arguments);
  if (n > 0 && (size_t)n < left) findings->bytes += n;
  else findings->truncated = 1;
}
static void put_string(const char* name, const char* text) {
  char escaped[700];
  size_t n = 0;
  for (; *text && n + 7 < sizeof escaped; ++text) {
    unsigned char c = *text;
    if (c == '"' || c == '\\') escaped[n++] = '\\', escaped[n++] = c;
    else if (c < 32) n += snprintf(escaped + n, 7, "\\u%04x", c);
    else escaped[n++] = c;
  }
  escaped[n] = 0;
  put(",\"%s\":\"%s\"", name, escaped);
}

/* Records a finding once per kind, line and object. other: return address of the second access, or 0. */
static void find_at(kind k, place at, object o, int thread, int other_thread, uintptr_t other, const char* format, ...) {
  for (unsigned i = 0; i < findings->key_count; ++i)
    if (findings->keys[i].kind == k && findings->keys[i].line == at.line && findings->keys[i].buffer == o.buffer &&
        findings->keys[i].variable == o.variable) return;
  if (findings->key_count < 256) {
    findings->keys[findings->key_count].kind = k;
    findings->keys[findings->key_count].line = at.line;
    findings->keys[findings->key_count].buffer = o.buffer;
    findings->keys[findings->key_count++].variable = o.variable;
  }
  if (findings->count++ >= finding_limit()) return;
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  uint64_t start = findings->bytes;
  put("{\"kind\":\"%s\"", kinds[k].name);
  put_string("kernel", launch->kernel ? launch->kernel : "");
  if (at.file) put_string("file", at.file);
  put(",\"line\":%u", at.line);
  if (o.buffer >= 0) put(",\"buffer\":%d", o.buffer);
  if (o.variable) put_string("variable", o.variable);
  if (o.buffer >= 0 || o.variable) put(",\"offset\":%ld", o.offset);
  put(",\"threads\":[");
  if (thread >= 0) put("%d", thread);
  if (other_thread >= 0) put("%s%d", thread >= 0 ? "," : "", other_thread);
  put("]");
  if (__hm_cur) put(",\"threadgroup\":[%u,%u,%u]", __hm_cur->group_position[0], __hm_cur->group_position[1], __hm_cur->group_position[2]);
  place second = other ? place_of(other) : (place){0, 0};
  if (second.line) put(",\"related\":%u", second.line);
  put_string("rule", kinds[k].rule);
  put_string("message", message);
  put("}\n");
  if (findings->truncated) findings->bytes = start, findings->text[start] = 0;
}
#define find(k, pc, o, thread, other_thread, other, ...) find_at(k, place_of(pc), o, thread, other_thread, other, __VA_ARGS__)

static int this_thread(void) { return __hm_cur ? (int)__hm_cur->thread_index : -1; }

void __hm_finding(unsigned code, unsigned line, const char* text, long a, long b) {
  static const kind of_code[] = {CAPACITY, EXTENT, INVALID_SLOT, ARGUMENT, UNINITIALISED, MISALIGNED};
  unsigned which = code & 255u;
  place at = place_of((uintptr_t)__builtin_return_address(0));
  if (line) at.line = line;
  find_at(which < 6 ? of_code[which] : ARGUMENT, at, no_object, this_thread(), -1, 0, text, a, b);
  if (code & HM_FATAL) stop_dispatch();
}
