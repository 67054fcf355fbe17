/* Which thread holds which element of a cooperative tensor.
 *
 * Apple calls the map implementation defined. NAX and STRICT are the two maps that shipping kernels rely
 * on or report; PERMUTED and PADDED are arbitrary legal ones, for kernels that claim to depend on none. */
#define MAX_LAYOUTS 64
#define LAYOUT_WORDS ((size_t)1 << 20)

static struct { unsigned role, rows, cols, simdgroups, bytes, strict; __hm_layout layout; } layouts[MAX_LAYOUTS];
static unsigned layout_count, layout_kind;
static uint64_t layout_seed;
static uint32_t* layout_words;
static size_t layout_used;

static void layouts_reset(void) {
  if (layout_kind == options->layout && layout_seed == options->layout_seed) return;
  layout_kind = options->layout, layout_seed = options->layout_seed;
  layout_count = 0, layout_used = 0;
}

static uint32_t pack(unsigned row, unsigned col) { return col | row << 16; }

/* 16x16 fragments in row-major order; a lane has two rows of four neighbours in each. */
static uint32_t nax_element(const __hm_layout* l, unsigned fragment, unsigned lane, unsigned e) {
  unsigned across = l->cols / 16;
  unsigned row = ((lane >> 2 & 4) | (lane >> 1 & 3)) + 8 * (e / 4);
  unsigned col = ((lane >> 2 & 2) | (lane & 1)) * 4 + e % 4;
  return pack(fragment / across * 16 + row, fragment % across * 16 + col);
}
/* 8x8 tiles in row-major order, each with the map of simdgroup_matrix. */
static uint32_t strict_element(const __hm_layout* l, unsigned tile, unsigned lane, unsigned e) {
  unsigned across = l->cols / 8;
  unsigned row = (lane >> 2 & 4) | (lane >> 1 & 3);
  unsigned col = (lane >> 2 & 2) * 2 + (lane & 1) * 2 + e;
  return pack(tile / across * 8 + row, tile % across * 8 + col);
}

/* Deals fragments of `each` elements per lane to the simdgroups, consecutive ones to the same. */
static void deal_fragments(__hm_layout* l, uint32_t* coord, unsigned fragments, unsigned each,
                           uint32_t (*element)(const __hm_layout*, unsigned, unsigned, unsigned)) {
  unsigned share = (fragments + l->simdgroups - 1) / l->simdgroups;
  for (unsigned f = 0; f < fragments; ++f)
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned e = 0; e < each; ++e)
        coord[(f / share * 32 + lane) * l->capacity + f % share * each + e] = element(l, f, lane, e);
}

static void deal_shuffled(__hm_layout* l, uint32_t* coord, int pad) {
  unsigned threads = 32 * l->simdgroups, elements = l->rows * l->cols, share = (elements + threads - 1) / threads;
  uint64_t keep = random_state;
  random_seed(layout_seed * 1000003u + l->rows * 131u + l->cols * 7u + (unsigned)(layout_count * 65537u));
  uint32_t* deck = coord + (size_t)threads * l->capacity;  /* scratch behind the table */
  for (unsigned i = 0; i < elements; ++i) deck[i] = pack(i / l->cols, i % l->cols);
  for (unsigned i = elements; i > 1; --i) {
    unsigned j = random_next() % i;
    uint32_t t = deck[i - 1];
    deck[i - 1] = deck[j], deck[j] = t;
  }
  for (unsigned t = 0, next = 0; t < threads; ++t) {
    unsigned skip = pad ? random_next() % (HM_PADDING + 1) : 0;  /* the empty slots are not at the same place in every thread */
    for (unsigned s = 0; s < share && next < elements; ++s) coord[t * l->capacity + (s + skip) % l->capacity] = deck[next++];
  }
  random_state = keep;
}

const __hm_layout* __hm_layout_of(unsigned role, unsigned rows, unsigned cols, unsigned simdgroups, unsigned bytes, unsigned strict) {
  for (unsigned i = 0; i < layout_count; ++i)
    if (layouts[i].role == role && layouts[i].rows == rows && layouts[i].cols == cols &&
        layouts[i].simdgroups == simdgroups && layouts[i].bytes == bytes && layouts[i].strict == strict)
      return &layouts[i].layout;
  unsigned threads = 32 * simdgroups, elements = rows * cols;
  unsigned capacity = (elements + threads - 1) / threads + (layout_kind == HM_LAYOUT_PADDED ? HM_PADDING : 0);
  size_t words = (size_t)threads * capacity;
  if (!layout_words) layout_words = map_memory(LAYOUT_WORDS * 4, 0);
  if (!layout_words || layout_count == MAX_LAYOUTS || layout_used + words + elements > LAYOUT_WORDS) {
    find(ARGUMENT, (uintptr_t)__builtin_return_address(0), no_object, this_thread(), -1, 0,
         "more cooperative tensor shapes than the emulator keeps (%u)", layout_count);
    stop_dispatch();
  }
  uint32_t* coord = layout_words + layout_used;
  layout_used += words;
  layouts[layout_count].role = role, layouts[layout_count].rows = rows, layouts[layout_count].cols = cols;
  layouts[layout_count].simdgroups = simdgroups, layouts[layout_count].bytes = bytes, layouts[layout_count].strict = strict;
  __hm_layout* l = &layouts[layout_count].layout;
  *l = (__hm_layout){capacity, rows, cols, simdgroups, coord};
  for (size_t i = 0; i < words; ++i) coord[i] = HM_NO_ELEMENT;
  int nax = layout_kind == HM_LAYOUT_NAX && !strict;
  if (layout_kind == HM_LAYOUT_PERMUTED || layout_kind == HM_LAYOUT_PADDED)
    deal_shuffled(l, coord, layout_kind == HM_LAYOUT_PADDED);
  else if (nax && rows % 16 == 0 && cols % 16 == 0 && elements / 256 % simdgroups == 0)
    deal_fragments(l, coord, elements / 256, 8, nax_element);
  else if (rows % 8 == 0 && cols % 8 == 0 && elements / 64 % simdgroups == 0)
    deal_fragments(l, coord, elements / 64, 2, strict_element);
  else  /* no public map: neighbours to neighbours */
    for (unsigned e = 0; e < elements; ++e) coord[e % threads * capacity + e / threads] = pack(e / cols, e % cols);
  ++layout_count;
  return l;
}
