// Part of kernels_neon.cpp: values of kStepCodes codes, four vectors (see kernels_quant_body.h).

// A float16 made of an E4M3 byte is its value over 256, subnormal ones included.
static inline void values_of_e4m3(const uint8_t* p, V* v) {
  for (int j = 0; j < 2; j++) {
    uint16x8_t wide = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + 8 * j))));
    uint16x8_t half = vandq_u16(vshlq_n_u16(wide, 7), vdupq_n_u16(0xbfff));
    uint16x8_t nan = vceqq_u16(vorrq_u16(wide, vdupq_n_u16(0xff80)), vdupq_n_u16(0xffff));
    float16x8_t value = vreinterpretq_f16_u16(vorrq_u16(half, nan));
    v[2 * j] = vmulq_n_f32(vcvt_f32_f16(vget_low_f16(value)), 256.0f);
    v[2 * j + 1] = vmulq_n_f32(vcvt_f32_f16(vget_high_f16(value)), 256.0f);
  }
}

// Two byte look-ups give 16 bf16 values, even codes first.
template <bool kWithBias>
struct Nibbles {
  static constexpr bool kPairs = false, kScales = false, kBiased = kWithBias, kReadsAhead = false;
  static constexpr int8_t kOrder[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  uint8x16_t low, high;

  explicit Nibbles(const WeightFormat& f) : low(vld1q_u8(f.low)), high(vld1q_u8(f.high)) {}

  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    uint8x8_t packed = vld1_u8(p);
    uint8x16_t codes = vcombine_u8(vand_u8(packed, vdup_n_u8(15)), vshr_n_u8(packed, 4));
    uint8x16_t a = vqtbl1q_u8(low, codes), b = vqtbl1q_u8(high, codes);
    uint16x8_t even = vreinterpretq_u16_u8(vzip1q_u8(a, b)), odd = vreinterpretq_u16_u8(vzip2q_u8(a, b));
    v[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(even), 16));
    v[1] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(even), 16));
    v[2] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(odd), 16));
    v[3] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(odd), 16));
  }
  static inline void natural(V* v) {
    float32x4x2_t a = vzipq_f32(v[0], v[2]), b = vzipq_f32(v[1], v[3]);
    v[0] = a.val[0], v[1] = a.val[1], v[2] = b.val[0], v[3] = b.val[1];
  }
};

struct InOrder {
  static constexpr int8_t kOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static inline void natural(V*) {}
};

// Any number of bits: each 32-bit lane takes the bytes that its code begins in, and shifts.
struct AnyBits : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = true;
  uint8x16_t bytes[2];
  int32x4_t shift[2];
  uint32x4_t mask;

  explicit AnyBits(const WeightFormat& f) : mask(vdupq_n_u32((1u << f.bits) - 1)) {
    uint8_t from[32];
    int32_t by[8];
    for (int i = 0; i < 8; i++) {
      by[i] = -(i * f.bits % 8);
      for (int j = 0; j < 4; j++) {
        const int byte = i * f.bits / 8 + j;
        from[4 * i + j] = byte < 8 ? (uint8_t)byte : 0xff;
      }
    }
    for (int h = 0; h < 2; h++) bytes[h] = vld1q_u8(from + 16 * h), shift[h] = vld1q_s32(by + 4 * h);
  }
  inline uint32x4_t codes_of(uint8x16_t packs, int half) const {
    return vandq_u32(vshlq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(packs, bytes[half])), shift[half]), mask);
  }
  static inline uint8x16_t packs_of(const uint8_t* p) { return vcombine_u8(vld1_u8(p), vld1_u8(p)); }
};

struct Integers : AnyBits {
  using AnyBits::AnyBits;
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    uint8x16_t a = packs_of(p), b = packs_of(q);
    for (int h = 0; h < 2; h++) v[h] = vcvtq_f32_u32(codes_of(a, h)), v[2 + h] = vcvtq_f32_u32(codes_of(b, h));
  }
};

struct Lookup : AnyBits {
  const float* values;
  explicit Lookup(const WeightFormat& f) : AnyBits(f), values(f.values) {}
  inline V look_up(uint32x4_t codes) const {
    V v = vld1q_dup_f32(values + vgetq_lane_u32(codes, 0));
    v = vld1q_lane_f32(values + vgetq_lane_u32(codes, 1), v, 1);
    v = vld1q_lane_f32(values + vgetq_lane_u32(codes, 2), v, 2);
    return vld1q_lane_f32(values + vgetq_lane_u32(codes, 3), v, 3);
  }
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    uint8x16_t a = packs_of(p), b = packs_of(q);
    for (int h = 0; h < 2; h++) v[h] = look_up(codes_of(a, h)), v[2 + h] = look_up(codes_of(b, h));
  }
};

// Four values are 16 bytes, which one look-up takes.
struct Levels : AnyBits {
  uint8x16_t table;
  explicit Levels(const WeightFormat& f) : AnyBits(f), table(vreinterpretq_u8_f32(vld1q_f32(f.values))) {}
  inline V look_up(uint32x4_t codes) const {
    uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), codes, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(bytes)));
  }
  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    uint8x16_t a = packs_of(p), b = packs_of(q);
    for (int h = 0; h < 2; h++) v[h] = look_up(codes_of(a, h)), v[2 + h] = look_up(codes_of(b, h));
  }
};

struct Bytes : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = true, kReadsAhead = false;
  explicit Bytes(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const {
    for (int j = 0; j < 2; j++) {
      uint16x8_t wide = vmovl_u8(vld1_u8(p + 8 * j));
      v[2 * j] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
      v[2 * j + 1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide)));
    }
  }
};

struct E4M3 : InOrder {
  static constexpr bool kPairs = false, kScales = false, kBiased = false, kReadsAhead = false;
  explicit E4M3(const WeightFormat&) {}
  inline void step(const uint8_t* p, const uint8_t*, V* v) const { values_of_e4m3(p, v); }
};
