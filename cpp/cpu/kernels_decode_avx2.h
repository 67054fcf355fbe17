// Part of kernels_avx2.cpp: values of kStepCodes codes (see kernels_quant_body.h).

// Half a float16: the sign and the seven bits below it moved down by one, which is the value over 256, subnormal ones included.
static inline void values_of_e4m3(const uint8_t* p, V* v) {
  __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
  __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
  __m256i nan = _mm256_cmpeq_epi16(_mm256_or_si256(wide, _mm256_set1_epi16((short)0xff80)), _mm256_set1_epi16(-1));
  half = _mm256_or_si256(half, nan);
  v[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_set1_ps(256.0f));
  v[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), _mm256_set1_ps(256.0f));
}

static inline __m256i packs_of(const uint8_t* p) {
  long long bits;
  __builtin_memcpy(&bits, p, 8);
  return _mm256_set1_epi64x(bits);
}

// Two byte look-ups give 32 bf16 values, and a shift and a mask make f32 of them: that is cheaper than widening 32 codes and looking
// up f32 values, at the price of an odd order.
template <bool kWithBias>
struct Nibbles {
  static constexpr bool kPairs = true, kScales = false, kBiased = kWithBias, kReadsAhead = false;
  static constexpr int8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  __m256i low, high;

  explicit Nibbles(const WeightFormat& f)
      : low(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)f.low))),
        high(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)f.high))) {}

  // Even codes in the lower half of the register, odd ones in the upper one.
  static inline __m256i codes_of(__m256i twice) {
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
  }
  static inline void widen(__m256i words, V* v) {
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    v[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u)));
  }
  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    __m256i codes = codes_of(packs_of(p));
    widen(_mm256_unpacklo_epi8(_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes)), v);
  }
  inline void pair(const uint8_t* p, V* v) const {
    __m256i codes = codes_of(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)));
    __m256i a = _mm256_shuffle_epi8(low, codes), b = _mm256_shuffle_epi8(high, codes);
    widen(_mm256_unpacklo_epi8(a, b), v);
    widen(_mm256_unpackhi_epi8(a, b), v + 2);
  }
  static inline void natural(V* v) {
    const __m256i zip = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    V a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = _mm256_permutevar8x32_ps(a, zip);
    v[1] = _mm256_permutevar8x32_ps(b, zip);
  }
};

struct InOrder {
  static constexpr int8_t kOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static inline void natural(V*) {}
};

// Any number of bits: each 32-bit lane takes the bytes that its code begins in, and shifts.
struct AnyBits : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = true;
  __m256i bytes, shift, mask;

  explicit AnyBits(const WeightFormat& f) : mask(_mm256_set1_epi32((1 << f.bits) - 1)) {
    alignas(32) uint8_t from[32];
    alignas(32) int32_t by[8];
    for (int i = 0; i < 8; i++) {
      by[i] = i * f.bits % 8;
      for (int j = 0; j < 4; j++) {
        const int byte = i * f.bits / 8 + j;
        from[4 * i + j] = byte < 8 ? (uint8_t)byte : 0x80;
      }
    }
    bytes = _mm256_load_si256((const __m256i*)from);
    shift = _mm256_load_si256((const __m256i*)by);
  }
  inline __m256i codes_of(const uint8_t* p) const {
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(packs_of(p), bytes), shift), mask);
  }
};

struct Integers : AnyBits {
  using AnyBits::AnyBits;
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    v[0] = _mm256_cvtepi32_ps(codes_of(p));
    v[1] = _mm256_cvtepi32_ps(codes_of(q));
  }
};

struct Lookup : AnyBits {
  const float* values;
  explicit Lookup(const WeightFormat& f) : AnyBits(f), values(f.values) {}
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    v[0] = _mm256_i32gather_ps(values, codes_of(p), 4);
    v[1] = _mm256_i32gather_ps(values, codes_of(q), 4);
  }
};

// Sixteen codes of up to 2 bits stand in 32: each lane shifts its own down, and the look-up sees two bits. What is looked up are the
// weights: a table of them is made for each step.
struct Levels : InOrder {
  static constexpr bool kPairs = false, kScales = true, kBiased = true, kReadsAhead = true;
  __m256i shift;
  V levels;

  explicit Levels(const WeightFormat& f) {
    alignas(32) int32_t by[8];
    alignas(32) float level[8];
    for (int i = 0; i < 8; i++) by[i] = i * f.bits, level[i] = f.values[i % (1 << f.bits) % 4];
    shift = _mm256_load_si256((const __m256i*)by);
    levels = _mm256_load_ps(level);
  }
  inline V codes_of(const uint8_t* p) const {
    int packed;
    __builtin_memcpy(&packed, p, 4);
    return _mm256_castsi256_ps(_mm256_srlv_epi32(_mm256_set1_epi32(packed), shift));
  }
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const { v[0] = codes_of(p), v[1] = codes_of(q); }
  inline void scale(V* v, V scale, V bias) const {
    const V weights = _mm256_fmadd_ps(levels, scale, bias);
    for (int j = 0; j < 2; j++) v[j] = _mm256_permutevar_ps(weights, _mm256_castps_si256(v[j]));
  }
};

struct Bytes : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = false;
  explicit Bytes(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    for (int j = 0; j < 2; j++) v[j] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8 * j))));
  }
};

struct E4M3 : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = false, kReadsAhead = false;
  explicit E4M3(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const { values_of_e4m3(p, v); }
};
