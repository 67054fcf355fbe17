// Part of kernels_avx512.cpp: values of kStepCodes codes, one vector (see kernels_quant_body.h).

// A float16 made of an E4M3 byte is its value over 256, subnormal ones included.
static inline void values_of_e4m3(const uint8_t* p, V* v) {
  __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
  __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
  __m256i nan = _mm256_cmpeq_epi16(_mm256_or_si256(wide, _mm256_set1_epi16((short)0xff80)), _mm256_set1_epi16(-1));
  v[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256.0f));
}

// A register holds all 16 values.
template <bool kWithBias>
struct Nibbles {
  static constexpr bool kPairs = false, kScales = false, kBiased = kWithBias, kReadsAhead = false;
  static constexpr int8_t kOrder[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  V table;

  explicit Nibbles(const WeightFormat& f) : table(_mm512_loadu_ps(f.values)) {}

  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    // Even lanes hold the first eight codes, odd ones the others; each shifts its own down, and the look-up sees four bits.
    __m512i codes = _mm512_srlv_epi32(_mm512_broadcast_i32x2(_mm_loadl_epi64((const __m128i*)p)),
                                      _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28));
    v[0] = _mm512_permutexvar_ps(codes, table);
  }
  static inline void natural(V* v) {
    v[0] = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), v[0]);
  }
};

struct InOrder {
  static constexpr int8_t kOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static inline void natural(V*) {}
};

// Any number of bits: each 32-bit lane takes the bytes that its code begins in, and shifts.
struct AnyBits : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = true;
  __m512i bytes, shift, mask;

  explicit AnyBits(const WeightFormat& f) : mask(_mm512_set1_epi32((1 << f.bits) - 1)) {
    alignas(64) uint8_t from[64];
    alignas(64) int32_t by[16];
    for (int i = 0; i < 16; i++) {
      by[i] = i % 8 * f.bits % 8;
      for (int j = 0; j < 4; j++) {
        const int byte = i % 8 * f.bits / 8 + j;
        from[4 * i + j] = byte < 8 ? (uint8_t)byte : 0x80;
      }
    }
    bytes = _mm512_load_si512(from);
    shift = _mm512_load_si512(by);
  }
  static inline __m256i packs_of(const uint8_t* p) {
    long long bits;
    __builtin_memcpy(&bits, p, 8);
    return _mm256_set1_epi64x(bits);
  }
  inline __m512i codes_of(const uint8_t* p, const uint8_t* q) const {
    __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(packs_of(p)), packs_of(q), 1);
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_epi8(both, bytes), shift), mask);
  }
};

struct Integers : AnyBits {
  using AnyBits::AnyBits;
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const { v[0] = _mm512_cvtepi32_ps(codes_of(p, q)); }
};

struct Lookup : AnyBits {
  const float* values;
  explicit Lookup(const WeightFormat& f) : AnyBits(f), values(f.values) {}
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const { v[0] = _mm512_i32gather_ps(codes_of(p, q), values, 4); }
};

struct Levels : AnyBits {
  V table;
  explicit Levels(const WeightFormat& f) : AnyBits(f), table(_mm512_loadu_ps(f.values)) {}
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const { v[0] = _mm512_permutexvar_ps(codes_of(p, q), table); }
};

struct Bytes : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = false;
  explicit Bytes(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    v[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
};

struct E4M3 : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = false, kReadsAhead = false;
  explicit E4M3(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const { values_of_e4m3(p, v); }
};
