/* Instruction address -> file and line, from the .debug_line section (DWARF 5 or 4) of the kernel's .so.
 *
 * Reads the file itself: no symboliser can be assumed on a user's machine, and a finding must be complete
 * wherever it surfaces. Headers are compiled nodebug, so the innermost line is the kernel's own. */
typedef struct place { const char* file; unsigned line; } place;

static struct module {
  char path[1024];
  uintptr_t base;
  const uint8_t* bytes;
  size_t size;
  const uint8_t *line_start, *line_end;
  const uint8_t *line_strings, *line_strings_end, *strings, *strings_end;
} module;
static unsigned module_number = 1;  /* of the mapping: names of files point into it */

static void module_close(void) {
  if (module.bytes) munmap((void*)module.bytes, module.size);
  ++module_number;
  memset(&module, 0, sizeof module);
}

/* Called before anything can go wrong: dladdr is not safe inside a signal handler. */
static void module_of(void* address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return;
  if (module.base == (uintptr_t)info.dli_fbase && !strcmp(module.path, info.dli_fname)) return;
  module_close();
  module.base = (uintptr_t)info.dli_fbase;
  snprintf(module.path, sizeof module.path, "%s", info.dli_fname);
}

typedef struct elf_header { uint8_t ident[16]; uint16_t type, machine; uint32_t version; uint64_t entry, phoff, shoff; uint32_t flags; uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx; } elf_header;
typedef struct elf_section { uint32_t name, type; uint64_t flags, addr, offset, size; uint32_t link, info; uint64_t align, entsize; } elf_section;

static int module_read(void) {
  if (module.bytes) return module.line_start != 0;
  int fd = open(module.path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  off_t size = lseek(fd, 0, SEEK_END);
  void* p = size < (off_t)sizeof(elf_header) ? MAP_FAILED : mmap(0, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return 0;
  module.bytes = p;
  module.size = size;
  const elf_header* elf = p;
  if (memcmp(elf->ident, "\177ELF\2\1", 6) || elf->shoff + (uint64_t)elf->shnum * sizeof(elf_section) > module.size) return 0;
  const elf_section* sections = (const void*)(module.bytes + elf->shoff);
  const elf_section* names = &sections[elf->shstrndx];
  for (unsigned i = 0; i < elf->shnum; ++i) {
    const elf_section* s = &sections[i];
    if (s->name >= names->size || s->offset + s->size > module.size) continue;
    const char* name = (const char*)module.bytes + names->offset + s->name;
    const uint8_t *start = module.bytes + s->offset, *end = start + s->size;
    if (!strcmp(name, ".debug_line")) module.line_start = start, module.line_end = end;
    if (!strcmp(name, ".debug_line_str")) module.line_strings = start, module.line_strings_end = end;
    if (!strcmp(name, ".debug_str")) module.strings = start, module.strings_end = end;
  }
  return module.line_start != 0;
}

static uint64_t leb(const uint8_t** p) {
  uint64_t value = 0;
  unsigned shift = 0;
  uint8_t byte;
  do { byte = *(*p)++; value |= (uint64_t)(byte & 127) << shift; shift += 7; } while (byte & 128);
  return value;
}
static int64_t signed_leb(const uint8_t** p) {
  int64_t value = 0;
  unsigned shift = 0;
  uint8_t byte;
  do { byte = *(*p)++; value |= (int64_t)(byte & 127) << shift; shift += 7; } while (byte & 128);
  return shift < 64 && (byte & 64) ? value | -((int64_t)1 << shift) : value;
}
static uint64_t fixed(const uint8_t** p, unsigned n) {
  uint64_t value = 0;
  memcpy(&value, *p, n);
  *p += n;
  return value;
}

/* One attribute of a file entry; returns its string if it is one. */
static const char* line_attribute(const uint8_t** p, uint64_t form) {
  const char* text = 0;
  switch (form) {
    case 0x08: text = (const char*)*p; *p += strlen(text) + 1; break;             /* string */
    case 0x0e: text = (const char*)module.strings + fixed(p, 4); break;            /* strp */
    case 0x1f: text = (const char*)module.line_strings + fixed(p, 4); break;       /* line_strp */
    case 0x0b: *p += 1; break;
    case 0x05: *p += 2; break;
    case 0x06: *p += 4; break;
    case 0x07: *p += 8; break;
    case 0x0f: leb(p); break;
    case 0x1e: *p += 16; break;                                                    /* data16: MD5 */
  }
  return text;
}

#define MAX_FILES 512
static const char* line_files[MAX_FILES];

static void files_version5(const uint8_t** p) {
  for (int table = 0; table < 2; ++table) {  /* directories, then files */
    unsigned formats = *(*p)++;
    uint64_t kind[8], form[8];
    for (unsigned i = 0; i < formats; ++i) { uint64_t k = leb(p), f = leb(p); if (i < 8) kind[i] = k, form[i] = f; }
    uint64_t count = leb(p);
    for (uint64_t n = 0; n < count; ++n)
      for (unsigned i = 0; i < formats && i < 8; ++i) {
        const char* text = line_attribute(p, form[i]);
        if (table == 1 && kind[i] == 1 && n < MAX_FILES) line_files[n] = text;
      }
  }
}
static void files_version4(const uint8_t** p) {
  while (**p) *p += strlen((const char*)*p) + 1;
  ++*p;
  for (unsigned n = 1; **p; ++n) {
    if (n < MAX_FILES) line_files[n] = (const char*)*p;
    *p += strlen((const char*)*p) + 1;
    leb(p), leb(p), leb(p);
  }
  ++*p;
}

/* Runs one line-number program; 1 when address was found in it. */
static int line_program(const uint8_t* p, const uint8_t* end, uint64_t address, place* found) {
  unsigned version = fixed(&p, 2);
  if (version < 4 || version > 5) return 0;
  if (version == 5) p += 2;  /* address size, segment selector size */
  uint64_t header = fixed(&p, 4);
  const uint8_t* program = p + header;
  unsigned minimum = *p++;
  p += 2;  /* operations per instruction, default is_stmt */
  int line_base = (int8_t)*p++;
  unsigned line_range = *p++, opcode_base = *p++;
  const uint8_t* lengths = p;
  p += opcode_base - 1;
  memset(line_files, 0, sizeof line_files);
  if (version == 5) files_version5(&p); else files_version4(&p);
  uint64_t row = 0, last_row = 0;
  unsigned file = 1, line = 1, last_file = 1, last_line = 0, open = 0;
  for (p = program; p < end;) {
    unsigned op = *p++, emit = 0, finish = 0;
    if (op >= opcode_base) { op -= opcode_base; row += op / line_range * minimum; line += line_base + op % line_range; emit = 1; }
    else if (op == 0) {
      uint64_t length = leb(&p);
      const uint8_t* next = p + length;
      unsigned extended = *p++;
      if (extended == 1) emit = finish = 1;
      if (extended == 2) row = fixed(&p, 8);
      p = next;
    }
    else if (op == 1) emit = 1;
    else if (op == 2) row += leb(&p) * minimum;
    else if (op == 3) line += signed_leb(&p);
    else if (op == 4) file = leb(&p);
    else if (op == 8) row += (255 - opcode_base) / line_range * minimum;
    else if (op == 9) row += fixed(&p, 2);
    else for (unsigned n = lengths[op - 1]; n; --n) leb(&p);
    if (!emit) continue;
    if (open && address >= last_row && address < row && last_line) {
      found->file = last_file < MAX_FILES ? line_files[last_file] : 0;
      found->line = last_line;
      return 1;
    }
    /* Line 0 marks code that belongs to no line: keep the one before it. */
    last_row = row, open = 1;
    if (line) last_file = file, last_line = line;
    if (finish) row = 0, file = 1, line = 1, open = 0, last_line = 0;
  }
  return 0;
}

/* Place of a call: pc is its return address. */
static place place_of(uintptr_t pc) {
  static struct { uintptr_t pc; place at; } cache[256];
  static unsigned cache_of;
  if (cache_of != module_number) { memset(cache, 0, sizeof cache); cache_of = module_number; }
  unsigned slot = (pc >> 1) & 255;
  if (cache[slot].pc == pc && pc) return cache[slot].at;
  place found = {0, 0};
  if (pc && module_read()) {
    const uint8_t* p = module.line_start;
    while (p + 4 < module.line_end) {
      uint64_t length = fixed(&p, 4);
      if (p + length > module.line_end || line_program(p, p + length, pc - 1 - module.base, &found)) break;
      p += length;
    }
  }
  if (found.file) { const char* slash = strrchr(found.file, '/'); if (slash) found.file = slash + 1; }
  cache[slot].pc = pc;
  cache[slot].at = found;
  return found;
}
