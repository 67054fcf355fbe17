/* What instrumented kernels call: the entry points of clang's thread sanitizer (every access that may reach
 * memory which others see) and those of its alignment and array-bounds checks. No sanitizer runtime is linked. */
#define PC ((uintptr_t)__builtin_return_address(0))

static object object_at(uintptr_t address) {
  for (unsigned i = 0; i < buffer_count; ++i)
    if (address >= buffers[i].low && address < buffers[i].high) return (object){(int)buffers[i].index, 0, (long)(address - buffers[i].low)};
  for (unsigned i = 0; i < variable_count; ++i) {
    uintptr_t low = (uintptr_t)arena + variables[i].offset;
    if (address >= low && address < low + variables[i].bytes) return (object){-1, variables[i].name, (long)(address - low)};
  }
  return no_object;
}
__attribute__((noinline)) static void misaligned(uintptr_t address, unsigned alignment, uintptr_t pc) {
  if (!__hm_cur) return;
  object o = object_at(address);
  find(MISALIGNED, pc, o, this_thread(), -1, 0, "byte %ld of its buffer or variable is no multiple of %u", o.offset, alignment);
}
/* Clang calls these, and not the unaligned ones, for accesses that it may assume aligned to 8 bytes or to their size. */
static inline void access_aligned(void* p, unsigned n, int write, uintptr_t pc) {
  if (__builtin_expect((uintptr_t)p & ((n < 8 ? n : 8) - 1), 0)) misaligned((uintptr_t)p, n < 8 ? n : 8, pc);
  access_memory((uintptr_t)p, n, write, pc);
}

#define HOOKS(n)                                                                                  \
  void __tsan_read##n(void* p) { access_aligned(p, n, 0, PC); }                                   \
  void __tsan_write##n(void* p) { access_aligned(p, n, 1, PC); }                                  \
  void __tsan_unaligned_read##n(void* p) { access_memory((uintptr_t)p, n, 0, PC); }               \
  void __tsan_unaligned_write##n(void* p) { access_memory((uintptr_t)p, n, 1, PC); }              \
  void __tsan_read_write##n(void* p) {                                                            \
    access_memory((uintptr_t)p, n, 0, PC);                                                        \
    access_memory((uintptr_t)p, n, 1, PC);                                                        \
  }                                                                                               \
  void __tsan_unaligned_read_write##n(void* p) {                                                  \
    access_memory((uintptr_t)p, n, 0, PC);                                                        \
    access_memory((uintptr_t)p, n, 1, PC);                                                        \
  }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)

void __tsan_init(void) {}
void __tsan_func_entry(void* p) { (void)p; }
void __tsan_func_exit(void) {}
void __tsan_vptr_read(void* p) { (void)p; }
void __tsan_vptr_update(void* p, void* q) { (void)p, (void)q; }
void __tsan_read_range(void* p, unsigned long n) { access_memory((uintptr_t)p, n, 0, PC); }
void __tsan_write_range(void* p, unsigned long n) { access_memory((uintptr_t)p, n, 1, PC); }
void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  access_memory((uintptr_t)from, n, 0, PC);
  access_memory((uintptr_t)to, n, 1, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, unsigned long n) {
  access_memory((uintptr_t)from, n, 0, PC);
  access_memory((uintptr_t)to, n, 1, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int byte, unsigned long n) {
  access_memory((uintptr_t)to, n, 1, PC);
  return memset(to, byte, n);
}

typedef struct check_place { const char* file; uint32_t line, column; } check_place;
typedef struct alignment_check { check_place at; void* type; uint8_t log_alignment, kind; } alignment_check;
typedef struct bounds_check { check_place at; void *array, *index; } bounds_check;

void __ubsan_handle_type_mismatch_v1(alignment_check* check, uintptr_t address) {
  misaligned(address, 1u << check->log_alignment, PC);
}
/* Negative and huge indices arrive as the bits of a 64-bit integer. */
void __ubsan_handle_out_of_bounds(bounds_check* check, uintptr_t index) {
  (void)check;
  if (__hm_cur) find(LOCAL_OVERRUN, PC, no_object, this_thread(), -1, 0, "index %ld is outside its array", (long)index);
}
