// Part of kernels_baseline.cpp: values of kStepCodes codes, four vectors (see kernels_quant_body.h). One code at a time, from the table.

template <bool kWithBias>
struct FromTable {
  static constexpr bool kPairs = false, kScales = false, kBiased = kWithBias, kReadsAhead = true;
  static constexpr int8_t kOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const float* values;
  int bits;

  explicit FromTable(const WeightFormat& f) : values(f.values), bits(f.bits) {}

  inline void step(const uint8_t* p, const uint8_t* q, V* v) const {
    uint64_t packs[2];
    __builtin_memcpy(&packs[0], p, 8);
    __builtin_memcpy(&packs[1], q, 8);
    const uint64_t mask = (1u << bits) - 1;
    for (int j = 0; j < 4; j++) {
      const uint64_t rest = packs[j / 2] >> j % 2 * 4 * bits;
      v[j] = V{values[rest & mask], values[rest >> bits & mask], values[rest >> 2 * bits & mask], values[rest >> 3 * bits & mask]};
    }
  }
  static inline void natural(V*) {}
};

template <bool kWithBias>
using Nibbles = FromTable<kWithBias>;
using Levels = FromTable<true>;
using Integers = FromTable<true>;
using Bytes = FromTable<true>;
using Lookup = FromTable<true>;
using E4M3 = FromTable<false>;

static inline void values_of_e4m3(const uint8_t* p, V* v) {
  for (int j = 0; j < 4; j++) {
    U byte = {p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]};
    V value = from_f16((byte & 0x80u) << 8 | (byte & 0x7fu) << 7) * 256.0f;
    v[j] = pick((I)(byte & 0x7fu) == 0x7f, (V)(U{} + 0x7fc00000u), value);
  }
}
