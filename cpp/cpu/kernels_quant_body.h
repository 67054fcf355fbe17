// Part of kernels_body.h: block-quantised weights. Included there, inside the anonymous namespace of kernels_<isa>.cpp, after that
// file's decoders (kernels_decode_<isa>.h). A decoder D has
//   kPairs            whether there is pair(p, v), the values of two steps that follow each other
//   kReadsAhead       whether step() reads 8 bytes from each pack on, else only the codes themselves
//   kBiased           whether weights are fma(value, scale, bias), else value * scale
//   kOrder[i]         the code, of kStepCodes, whose value is element i of what step() writes
//   D(format)
//   step(p, q, v)     values of kStepCodes codes, unscaled: packs of 8 codes at p and q
//   natural(v)        what step() wrote, scaled, in the order of the codes
// and if kScales, step() leaves the look-up to scale(v, scale, bias), which makes weights of one step.

constexpr int kStepVectors = kStepCodes / kLanes;
constexpr int kPairVectors = 2 * kStepVectors;

template <int kCount>
struct Count {
  static constexpr int kValue = kCount;
};

// ---- scales ------------------------------------------------------------------------------------

static inline float one_e4m3(uint8_t byte) {
  if ((byte & 0x7f) == 0x7f) return __builtin_nanf("");
  return widen_f16((uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7)) * 256.0f;
}

static inline float one_e8m0(uint8_t byte) {
  const int32_t bits = byte << 23, least = 0x00400000;  // 255 is infinity, 0 is subnormal
  const int32_t result = bits > least ? bits : least;
  float value;
  __builtin_memcpy(&value, &result, 4);
  return value;
}

static void quant_scales(ScaleType type, const uint8_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  if (type == ScaleType::e8m0) {
    for (; i < count; i++) dst[i] = one_e8m0(src[i]);
    return;
  }
  for (; i + kStepCodes <= count; i += kStepCodes) {
    V v[kStepVectors];
    values_of_e4m3(src + i, v);
    for (int j = 0; j < kStepVectors; j++) store(dst + i + j * kLanes, v[j]);
  }
  for (; i < count; i++) dst[i] = one_e4m3(src[i]);
}

// ---- steps -------------------------------------------------------------------------------------

#define ALWAYS_INLINE inline __attribute__((always_inline))

// How many of `steps` steps may be read ahead of.
template <typename D>
static inline int64_t steps_to_read_ahead(int64_t steps, int bits) {
  const int64_t left = D::kReadsAhead ? (8 - bits + 2 * bits - 1) / (2 * bits) : 0;
  return steps > left ? steps - left : 0;
}

// The two packs of a step near the end of a row that begins at `start`, behind which nothing may be read.
static __attribute__((noinline)) void copy_packs(const uint8_t* start, const uint8_t* p, int bits, uint64_t* packs) {
  for (int half = 0; half < 2; half++, p += bits) {
    if (p + bits - start >= 8) {
      __builtin_memcpy(&packs[half], p + bits - 8, 8);
      packs[half] >>= 64 - 8 * bits;
    } else {
      packs[half] = 0;
      for (int i = 0; i < bits; i++) packs[half] |= (uint64_t)p[i] << 8 * i;
    }
  }
}

// kCount steps of a stored row, at `offset` from its start; `last` if they may not be read ahead of.
template <int kCount, typename D>
static ALWAYS_INLINE void decode_steps(const D& d, const uint8_t* start, int64_t offset, bool last, int bits, V* v) {
  const uint8_t* p = start + offset;
  if constexpr (kCount == 2) {
    d.pair(p, v);
  } else if constexpr (D::kReadsAhead) {
    uint64_t packs[2];
    if (__builtin_expect(last, 0)) copy_packs(start, p, bits, packs);
    d.step(last ? (const uint8_t*)&packs[0] : p, last ? (const uint8_t*)&packs[1] : p + bits, v);
  } else {
    d.step(p, p + bits, v);
  }
}

// Scales (and biases) of one stored row, by group.
struct ScaleRow {
  const float* scales;
  const float* biases;

  ScaleRow(const QuantRows& q, int64_t row) : scales(q.scales + row * q.scale_stride), biases(q.biases) {
    if (biases) biases += row * q.scale_stride;
  }
};

// Groups of two steps.
struct Groups {
  int64_t at[2];

  Groups(const QuantRows& q, int64_t i) : at{(q.phase + i) >> q.shift, (q.phase + i + 1) >> q.shift} {}
};

template <int kCount, typename D>
static ALWAYS_INLINE void scale_steps([[maybe_unused]] const D& d, const ScaleRow& row, const Groups& groups, V* v) {
  for (int s = 0; s < kCount; s++, v += kStepVectors) {
    const int64_t at = groups.at[s];
    const V scale = broadcast(row.scales[at]);
    if constexpr (D::kScales) {
      d.scale(v, scale, broadcast(row.biases[at]));
    } else if constexpr (D::kBiased) {
      const V bias = broadcast(row.biases[at]);
      for (int j = 0; j < kStepVectors; j++) v[j] = fma(v[j], scale, bias);
    } else {
      for (int j = 0; j < kStepVectors; j++) v[j] = mul(v[j], scale);
    }
  }
}

// ---- strips ------------------------------------------------------------------------------------

// Vectors kAt.. of kLanes decoded rows (`stride` apart) become strip rows.
template <typename D, int kVectors, int kAt = 0>
static ALWAYS_INLINE void turn(const float* values, int64_t stride, float* out) {
  if constexpr (kAt < kVectors) {
    V block[kLanes];
    for (int j = 0; j < kLanes; j++) block[j] = load(values + j * stride + kAt * kLanes);
    transpose(block);
    for (int j = 0; j < kLanes; j++) {
      constexpr int first = kAt * kLanes;
      const int place = first + j;
      store(out + (place / kStepCodes * kStepCodes + D::kOrder[place % kStepCodes]) * kTileColumns, block[j]);
    }
    turn<D, kVectors, kAt + 1>(values, stride, out);
  }
}

template <int kCount, typename D>
static ALWAYS_INLINE void turn_steps(const D& d, const QuantRows& q, int64_t n, int count, int64_t i, bool last, int bits,
                                     float* out) {
  constexpr int64_t kWidth = kCount * kStepCodes;
  alignas(64) float values[kLanes * kWidth];
  const uint8_t* start = q.codes + n * q.stride;
  ScaleRow scales(q, n);
  const Groups groups(q, i);
  for (int j = 0; j < count; j++) {
    V v[kCount * kStepVectors];
    decode_steps<kCount>(d, start, i * 2 * bits, last, bits, v);
    scale_steps<kCount>(d, scales, groups, v);
    for (int s = 0; s < kCount * kStepVectors; s++) store(values + j * kWidth + s * kLanes, v[s]);
    start += q.stride;
    scales.scales += q.scale_stride;
    if (D::kBiased) scales.biases += q.scale_stride;
  }
  for (int64_t at = count * kWidth; at < kLanes * kWidth; at += kLanes) store(values + at, zero());
  turn<D, kCount * kStepVectors>(values, kWidth, out + i * kStepCodes * kTileColumns);
}

template <typename D>
static void strips_of_rows(const QuantRows& given, int64_t rows, int64_t depth, float* dst) {
  const QuantRows q = given;  // a copy that no store can alias
  const D d(*q.format);
  const int bits = q.format->bits;
  const int64_t steps = depth / kStepCodes, ahead = steps_to_read_ahead<D>(steps, bits);
  const int64_t padded = (rows + kTileColumns - 1) / kTileColumns * kTileColumns;
  for (int64_t n = 0; n < padded; n += kLanes) {
    float* out = dst + n / kTileColumns * kTileColumns * kDepth + n % kTileColumns;
    const int count = n + kLanes <= rows ? kLanes : n < rows ? (int)(rows - n) : 0;
    int64_t i = 0;
    if constexpr (D::kPairs)
      for (; i + 2 <= steps; i += 2) turn_steps<2>(d, q, n, count, i, false, bits, out);
    for (; i < steps; i++) turn_steps<1>(d, q, n, count, i, i >= ahead, bits, out);
  }
}

// Where element `at` of a step stands, from the step's first one on.
static_assert(kTileColumns % kStepCodes == 0 || kStepCodes % kTileColumns == 0);
constexpr int64_t place_in_strips(int at) {
  return kTileColumns < kStepCodes ? at / kTileColumns * kTileColumns * kDepth + at % kTileColumns : at;
}

// dst is the row of the first strip.
template <int kCount, typename D>
static ALWAYS_INLINE void put_steps(const D& d, const QuantRows& q, const ScaleRow& scales, const uint8_t* start, int64_t i, bool last,
                                    int bits, float* dst) {
  V v[kCount * kStepVectors];
  decode_steps<kCount>(d, start, i * 2 * bits, last, bits, v);
  scale_steps<kCount>(d, scales, Groups(q, i), v);
  for (int s = 0; s < kCount; s++) {
    d.natural(v + s * kStepVectors);
    const uint64_t c = (uint64_t)(i + s) * kStepCodes;
    float* out = dst + c / kTileColumns * kTileColumns * kDepth + c % kTileColumns;
    for (int j = 0; j < kStepVectors; j++) store(out + place_in_strips(j * kLanes), v[s * kStepVectors + j]);
  }
}

template <typename D>
static void strips_of_columns(const QuantRows& given, int64_t depth, int64_t columns, float* dst) {
  const QuantRows q = given;
  const D d(*q.format);
  const int bits = q.format->bits;
  const int64_t steps = columns / kStepCodes, ahead = steps_to_read_ahead<D>(steps, bits);
  for (int64_t k = 0; k < depth; k++) {
    const ScaleRow scales(q, k);
    const uint8_t* start = q.codes + k * q.stride;
    int64_t i = 0;
    if constexpr (D::kPairs)
      for (; i + 2 <= steps; i += 2) put_steps<2>(d, q, scales, start, i, false, bits, dst + k * kTileColumns);
    for (; i < steps; i++) put_steps<1>(d, q, scales, start, i, i >= ahead, bits, dst + k * kTileColumns);
  }
  const int64_t padded = (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
  for (int64_t c = columns; c < padded; c += kLanes)
    for (int64_t k = 0; k < depth; k++)
      store(dst + c / kTileColumns * kTileColumns * kDepth + k * kTileColumns + c % kTileColumns, zero());
}

// ---- few rows ----------------------------------------------------------------------------------

// x[step][row][kStepCodes]: one pointer and displacements reach every row.
template <typename D>
static void order_for_quant_dot(const float* src, int64_t k, float* dst, int64_t dst_stride) {
  for (int64_t i = 0; i < k; i += kStepCodes, dst += dst_stride)
    for (int j = 0; j < kStepCodes; j++) dst[j] = src[i + D::kOrder[j]];
}

// kRows rows of x against one stored row: two rows side by side, which read x half as often, are a third slower from memory, because
// its prefetcher follows one stream. kSumsFirst: a scale multiplies the sum over its step instead of every weight, which saves a
// multiplication for each of them.
template <typename D, int kRows, bool kSumsFirst>
static ALWAYS_INLINE void quant_dot_row(const D& d, const QuantRows& q, int bits, int64_t steps, int64_t ahead, int64_t rows, const float* x,
                                        int64_t n, float* y, int64_t y_stride, bool accumulate) {
  // Several accumulators per output where registers allow: one FMA chain has a latency of 4 cycles.
  constexpr int kVectors = (D::kPairs ? 2 : 1) * kStepVectors;
  constexpr int kWanted = kSumsFirst ? 2 : kRows == 1 ? 4 : kRows <= 4 ? 2 : 1;
  constexpr int kChains = kWanted < kVectors ? kWanted : kVectors;
  V acc[kRows][kChains];
  for (int r = 0; r < kRows; r++)
    for (int h = 0; h < kChains; h++) acc[r][h] = zero();
  const uint8_t* codes = q.codes + n * q.stride;
  const ScaleRow scales(q, n);
  auto take = [&](auto count, int64_t i, bool last) __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::kValue;
    const Groups groups(q, i);
    V v[kCount * kStepVectors];
    decode_steps<kCount>(d, codes, i * 2 * bits, last, bits, v);
    if constexpr (kSumsFirst) {
      for (int s = 0; s < kCount; s++)
        for (int r = 0; r < kRows; r++) {
          const float* in = x + (s * kRows + r) * kStepCodes;
          V sum = mul(v[s * kStepVectors], load(in));
          for (int j = 1; j < kStepVectors; j++) sum = fma(v[s * kStepVectors + j], load(in + j * kLanes), sum);
          V& to = acc[r][s % kChains];
          to = fma(sum, broadcast(scales.scales[groups.at[s]]), to);
        }
    } else {
      scale_steps<kCount>(d, scales, groups, v);
      for (int s = 0; s < kCount; s++)
        for (int r = 0; r < kRows; r++)
          for (int j = 0; j < kStepVectors; j++) {
            V& to = acc[r][(s * kStepVectors + j) % kChains];
            to = fma(v[s * kStepVectors + j], load(x + (s * kRows + r) * kStepCodes + j * kLanes), to);
          }
    }
    x += kCount * kRows * kStepCodes;
  };
  int64_t i = 0;
  if constexpr (D::kPairs)
    for (; i + 2 <= steps; i += 2) take(Count<2>{}, i, false);
  for (; i < steps; i++) take(Count<1>{}, i, i >= ahead);
  for (int r = 0; r < kRows && r < rows; r++) {
    V all = acc[r][0];
    for (int h = 1; h < kChains; h++) all = add(all, acc[r][h]);
    float* out = y + r * y_stride + n;
    *out = accumulate ? *out + sum(all) : sum(all);
  }
}

template <typename D, int kRows, bool kSumsFirst = false>
static void quant_dot_rows(const QuantRows& given, int64_t rows, int64_t k, const float* x, int64_t columns, float* y,
                           int64_t y_stride, bool accumulate) {
  const QuantRows q = given;
  const D d(*q.format);
  const int bits = q.format->bits;
  const int64_t steps = k / kStepCodes, ahead = steps_to_read_ahead<D>(steps, bits);
  for (int64_t n = 0; n < columns; n++)
    quant_dot_row<D, kRows, kSumsFirst>(d, q, bits, steps, ahead, rows, x, n, y, y_stride, accumulate);
}

template <typename D>
static void quant_dot(const QuantRows& q, int64_t rows, int64_t k, const float* x, int64_t columns, float* y, int64_t y_stride,
                      bool accumulate, bool tame) {
  switch (rows) {
    case 1:
      if (tame && !D::kBiased) return quant_dot_rows<D, 1, !D::kBiased>(q, rows, k, x, columns, y, y_stride, accumulate);
      return quant_dot_rows<D, 1>(q, rows, k, x, columns, y, y_stride, accumulate);
    case 2: return quant_dot_rows<D, 2>(q, rows, k, x, columns, y, y_stride, accumulate);
    case 3:
    case 4: return quant_dot_rows<D, 4>(q, rows, k, x, columns, y, y_stride, accumulate);
    default: return quant_dot_rows<D, 8>(q, rows, k, x, columns, y, y_stride, accumulate);
  }
}

static bool tame(const float* values, int64_t count) {
  int32_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    int32_t bits;
    __builtin_memcpy(&bits, values + i, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most < (127 + 96) << 23;
}

// ---- the table ---------------------------------------------------------------------------------

#define BY_DECODER(function, format, biased, ...)                                                                    \
  switch ((format).decoding) {                                                                                       \
    case Decoding::nibbles:                                                                                          \
      return biased ? function<Nibbles<true>>(__VA_ARGS__) : function<Nibbles<false>>(__VA_ARGS__);                  \
    case Decoding::levels: return function<Levels>(__VA_ARGS__);                                                     \
    case Decoding::integers: return function<Integers>(__VA_ARGS__);                                                 \
    case Decoding::bytes: return function<Bytes>(__VA_ARGS__);                                                       \
    case Decoding::e4m3: return biased ? function<Lookup>(__VA_ARGS__) : function<E4M3>(__VA_ARGS__);                \
    default: return function<Lookup>(__VA_ARGS__);                                                                   \
  }

static void strips_of_rows_any(const QuantRows& q, int64_t rows, int64_t depth, float* dst) {
  BY_DECODER(strips_of_rows, *q.format, q.biases, q, rows, depth, dst)
}
static void strips_of_columns_any(const QuantRows& q, int64_t depth, int64_t columns, float* dst) {
  BY_DECODER(strips_of_columns, *q.format, q.biases, q, depth, columns, dst)
}
static void order_for_quant_dot_any(const WeightFormat& format, const float* src, int64_t k, float* dst, int64_t dst_stride) {
  BY_DECODER(order_for_quant_dot, format, false, src, k, dst, dst_stride)
}
static void quant_dot_any(const QuantRows& q, int64_t rows, int64_t k, const float* x, int64_t columns, float* y, int64_t y_stride,
                          bool accumulate, bool tame) {
  BY_DECODER(quant_dot, *q.format, q.biases, q, rows, k, x, columns, y, y_stride, accumulate, tame)
}

#undef BY_DECODER
#undef ALWAYS_INLINE

static const QuantKernels kQuantTable = {
    quant_scales, strips_of_rows_any, strips_of_columns_any, order_for_quant_dot_any, quant_dot_any, tame,
};
