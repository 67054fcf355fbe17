// The kernels, written once over the vector type V of the including file (kernels_<isa>.cpp), inside
// its anonymous namespace. No include guard and no includes on purpose: see kernels.h.

constexpr int kTileColumns = kTileVectors * kLanes;
constexpr int kStep = 2 * kLanes;

// ---- loads of one vector, by type ------------------------------------------------------------

static inline float widen_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

struct F32 {
  using Element = float;
  static inline float one(float x) { return x; }
  static inline V load1(const float* p) { return load(p); }
  static inline void load2(const float* p, V& a, V& b) { a = load(p), b = load(p + kLanes); }
};

struct F16 {
  using Element = uint16_t;
  static inline float one(uint16_t x) { return widen_f16(x); }
  static inline V load1(const uint16_t* p) { return load_f16(p); }
  static inline void load2(const uint16_t* p, V& a, V& b) {
    a = load_f16(p), b = load_f16(p + kLanes);
  }
};

struct BF16 {
  using Element = uint16_t;
  static inline float one(uint16_t x) { return widen_bf16(x); }
  static inline V load1(const uint16_t* p) { return load_bf16(p); }
  static inline void load2(const uint16_t* p, V& a, V& b) { load_bf16_even_odd(p, a, b); }
};

// The first `count` of kStep elements, the rest zero. Never reads past them.
template <typename E>
static inline void copy_padded(const E* src, int64_t count, E* dst) {
  for (int64_t i = 0; i < kStep; i++) dst[i] = i < count ? src[i] : E(0);
}

// ---- packing -----------------------------------------------------------------------------------

template <typename T>
static inline void load_row(const typename T::Element* src, int64_t columns, float* dst) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) store(dst + c, T::load1(src + c));
  for (; c < columns; c++) dst[c] = T::one(src[c]);
}

template <typename T>
static void load_rows(const void* src, int64_t src_stride, int64_t rows, int64_t columns,
                      float* dst, int64_t dst_stride) {
  auto in = (const typename T::Element*)src;
  for (int64_t r = 0; r < rows; r++)
    load_row<T>(in + r * src_stride, columns, dst + r * dst_stride);
}

template <typename T>
static void load_columns(const void* src, int64_t src_stride, int64_t rows, int64_t columns,
                         float* dst, int64_t dst_stride) {
  auto in = (const typename T::Element*)src;
  int64_t r = 0;
  for (; r + kLanes <= rows; r += kLanes) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      V block[kLanes];
      for (int i = 0; i < kLanes; i++) block[i] = T::load1(in + (r + i) * src_stride + c);
      transpose(block);
      for (int i = 0; i < kLanes; i++) store(dst + (c + i) * dst_stride + r, block[i]);
    }
    for (; c < columns; c++)
      for (int i = 0; i < kLanes; i++)
        dst[c * dst_stride + r + i] = T::one(in[(r + i) * src_stride + c]);
  }
  for (; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      dst[c * dst_stride + r] = T::one(in[r * src_stride + c]);
}

template <typename T>
static void load_strips(const void* src, int64_t src_stride, int64_t depth, int64_t columns,
                        float* dst) {
  auto in = (const typename T::Element*)src;
  int64_t whole = columns / kTileColumns * kTileColumns;
  for (int64_t k = 0; k < depth; k++) {
    const typename T::Element* row = in + k * src_stride;
    float* out = dst + k * kTileColumns;
    for (int64_t c = 0; c < whole; c += kTileColumns, out += kDepth * kTileColumns)
      for (int v = 0; v < kTileVectors; v++)
        store(out + v * kLanes, T::load1(row + c + v * kLanes));
    if (whole < columns) {
      for (int v = 0; v < kTileVectors; v++) store(out + v * kLanes, zero());
      load_row<T>(row + whole, columns - whole, out);
    }
  }
}

// ---- register tile -----------------------------------------------------------------------------

// a has the constant row stride kDepth, so one pointer and displacements reach every row.
template <int kRows>
static void tile_rows(int64_t depth, const float* a, const float* strip, float* c,
                      int64_t c_stride, bool accumulate) {
  V acc[kRows][kTileVectors];
  for (int r = 0; r < kRows; r++) {
    prefetch(c + r * c_stride);
    for (int v = 0; v < kTileVectors; v++) acc[r][v] = zero();
  }
  for (int64_t k = 0; k < depth; k++) {
    V b[kTileVectors];
    for (int v = 0; v < kTileVectors; v++) b[v] = load(strip + k * kTileColumns + v * kLanes);
    for (int r = 0; r < kRows; r++) {
      V x = broadcast(a[r * kDepth + k]);
      for (int v = 0; v < kTileVectors; v++) acc[r][v] = fma(x, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kTileVectors; v++) {
      float* out = c + r * c_stride + v * kLanes;
      store(out, accumulate ? add(load(out), acc[r][v]) : acc[r][v]);
    }
}

template <int kRows>
static inline void tile_dispatch(int64_t rows, int64_t depth, const float* a, const float* strip,
                                 float* c, int64_t c_stride, bool accumulate) {
  if (rows == kRows) return tile_rows<kRows>(depth, a, strip, c, c_stride, accumulate);
  if constexpr (kRows > 1)
    tile_dispatch<kRows - 1>(rows, depth, a, strip, c, c_stride, accumulate);
}

static void tile(int64_t depth, const float* a, const float* strip, float* c, int64_t c_stride,
                 int64_t rows, int64_t columns, bool accumulate) {
  if (columns == kTileColumns)
    return tile_dispatch<kTileRows>(rows, depth, a, strip, c, c_stride, accumulate);
  float whole[kTileRows * kTileColumns];
  tile_dispatch<kTileRows>(rows, depth, a, strip, whole, kTileColumns, false);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < columns; j++) {
      float value = whole[r * kTileColumns + j];
      c[r * c_stride + j] = accumulate ? c[r * c_stride + j] + value : value;
    }
}

// ---- a few rows of x, weights streamed once ----------------------------------------------------

static void even_odd_split(const float* src, int64_t count, float* dst) {
  for (int64_t i = 0; i < count; i += kStep)
    for (int64_t j = 0; j < kLanes; j++) {
      dst[i + j] = src[i + 2 * j];
      dst[i + kLanes + j] = src[i + 2 * j + 1];
    }
}

// The first `count` elements as one step.
static void order_step(Type type, const float* src, int64_t count, float* dst) {
  float padded[kStep];
  copy_padded(src, count, padded);
  if (type == Type::bf16) return even_odd_split(padded, kStep, dst);
  for (int64_t i = 0; i < kStep; i++) dst[i] = padded[i];
}

static void order_for_dot(Type type, const float* src, int64_t k, int64_t head, float* dst) {
  if (head) {
    order_step(type, src, head, dst);
    src += head, k -= head, dst += kStep;
  }
  int64_t whole = k / kStep * kStep;
  if (type == Type::bf16) even_odd_split(src, whole, dst);
  else
    for (int64_t i = 0; i < whole; i++) dst[i] = src[i];
  if (whole < k) order_step(type, src + whole, k - whole, dst + whole);
}

static void order_from_axpy(Type type, const float* src, int64_t columns, float* dst) {
  for (int64_t c = 0; c < columns; c++) {
    int64_t i = c % kStep;
    dst[c] = src[type == Type::bf16 ? c - i + i / 2 + (i % 2) * kLanes : c];
  }
}

// kRows rows of x against kWeights rows of w.
template <typename T, int kRows, int kWeights>
static inline void dot_block(int64_t k, int64_t head, const float* x, int64_t x_stride,
                             const typename T::Element* w, int64_t w_stride, float* y,
                             int64_t y_stride, bool accumulate) {
  // Two accumulators per output where registers allow: one FMA chain has a latency of 4 cycles.
  constexpr int kChains = kRows == 1 ? 2 : 1;
  V acc[kRows][kWeights][kChains];
  for (int r = 0; r < kRows; r++)
    for (int j = 0; j < kWeights; j++)
      for (int h = 0; h < kChains; h++) acc[r][j][h] = zero();
  auto step = [&](const typename T::Element* p, int64_t stride, int64_t i) __attribute__((always_inline)) {
    for (int j = 0; j < kWeights; j++) {
      V a, b;
      T::load2(p + j * stride, a, b);
      for (int r = 0; r < kRows; r++) {
        const float* in = x + r * x_stride + i;
        acc[r][j][0] = fma(a, load(in), acc[r][j][0]);
        acc[r][j][kChains - 1] = fma(b, load(in + kLanes), acc[r][j][kChains - 1]);
      }
    }
  };
  auto padded_step = [&](int64_t at, int64_t count, int64_t i) {
    typename T::Element padded[kWeights][kStep];
    for (int j = 0; j < kWeights; j++) copy_padded(w + j * w_stride + at, count, padded[j]);
    step(padded[0], kStep, i);
  };
  int64_t at = head, i = head ? kStep : 0;  // in w and in x
  if (head) padded_step(0, head, 0);
  for (; at + kStep <= k; at += kStep, i += kStep) step(w + at, w_stride, i);
  if (at < k) padded_step(at, k - at, i);
  for (int r = 0; r < kRows; r++)
    for (int j = 0; j < kWeights; j++) {
      V total = kChains == 2 ? add(acc[r][j][0], acc[r][j][1]) : acc[r][j][0];
      float* out = y + r * y_stride + j;
      *out = accumulate ? *out + sum(total) : sum(total);
    }
}

template <typename T, int kRows>
static void dot_rows(int64_t k, int64_t head, const float* x, int64_t x_stride, const typename T::Element* w,
                     int64_t w_stride, int64_t columns, float* y, int64_t y_stride,
                     bool accumulate) {
  constexpr int kWeights = kRows <= 3 ? 4 : 2;
  int64_t n = 0;
  for (; n + kWeights <= columns; n += kWeights)
    dot_block<T, kRows, kWeights>(k, head, x, x_stride, w + n * w_stride, w_stride, y + n, y_stride,
                                  accumulate);
  for (; n < columns; n++)
    dot_block<T, kRows, 1>(k, head, x, x_stride, w + n * w_stride, w_stride, y + n, y_stride,
                           accumulate);
}

// Weight rows that stay in L1/L2 while a second group of four rows of x visits them.
constexpr int64_t kDotColumns = 4;

template <typename T>
static void dot(int64_t rows, int64_t k, int64_t head, const float* x, int64_t x_stride, const void* weights,
                int64_t w_stride, int64_t columns, float* y, int64_t y_stride, bool accumulate) {
  auto w = (const typename T::Element*)weights;
  int64_t group = rows <= 4 ? columns : kDotColumns;
  for (int64_t n = 0; n < columns; n += group) {
    int64_t count = columns - n < group ? columns - n : group;
    for (int64_t r = 0; r < rows; r += 4) {
      const float* xr = x + r * x_stride;
      const typename T::Element* wn = w + n * w_stride;
      float* out = y + r * y_stride + n;
      switch (rows - r) {
        case 1: dot_rows<T, 1>(k, head, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        case 2: dot_rows<T, 2>(k, head, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        case 3: dot_rows<T, 3>(k, head, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        default: dot_rows<T, 4>(k, head, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate);
      }
    }
  }
}

// kRows rows of x, kDeep rows of w, all columns.
template <typename T, int kRows, int kDeep>
static inline void axpy_block(const float* x, int64_t x_stride, const typename T::Element* w,
                              int64_t w_stride, int64_t columns, float* y, int64_t y_stride) {
  // Copies: stores to y could alias x, which would force a reload of every factor at every step.
  V factor[kRows][kDeep];
  for (int r = 0; r < kRows; r++)
    for (int k = 0; k < kDeep; k++) factor[r][k] = broadcast(x[r * x_stride + k]);
  auto step = [&](const typename T::Element* p, int64_t stride, float* out) __attribute__((always_inline)) {
    V lo[kRows], hi[kRows];
    for (int r = 0; r < kRows; r++) {
      lo[r] = load(out + r * y_stride);
      hi[r] = load(out + r * y_stride + kLanes);
    }
    for (int k = 0; k < kDeep; k++) {
      V a, b;
      T::load2(p + k * stride, a, b);
      for (int r = 0; r < kRows; r++) {
        lo[r] = fma(a, factor[r][k], lo[r]);
        hi[r] = fma(b, factor[r][k], hi[r]);
      }
    }
    for (int r = 0; r < kRows; r++) {
      store(out + r * y_stride, lo[r]);
      store(out + r * y_stride + kLanes, hi[r]);
    }
  };
  int64_t n = 0;
  for (; n + kStep <= columns; n += kStep) step(w + n, w_stride, y + n);
  if (n < columns) {
    typename T::Element tail[kDeep][kStep];
    for (int k = 0; k < kDeep; k++) copy_padded(w + k * w_stride + n, columns - n, tail[k]);
    step(tail[0], kStep, y + n);
  }
}

template <typename T, int kRows>
static void axpy_rows(int64_t k, const float* x, int64_t x_stride, const typename T::Element* w,
                      int64_t w_stride, int64_t columns, float* y, int64_t y_stride) {
  // Rows one page apart share an L1 set: six of them and y fit its 8 ways (8 rows: 10 % slower at N = 2048).
  constexpr int kDeep = 6;
  int64_t i = 0;
  for (; i + kDeep <= k; i += kDeep)
    axpy_block<T, kRows, kDeep>(x + i, x_stride, w + i * w_stride, w_stride, columns, y, y_stride);
  for (; i < k; i++)
    axpy_block<T, kRows, 1>(x + i, x_stride, w + i * w_stride, w_stride, columns, y, y_stride);
}

template <typename T>
static void axpy(int64_t rows, int64_t k, const float* x, int64_t x_stride, const void* weights,
                 int64_t w_stride, int64_t columns, float* y, int64_t y_stride) {
  auto w = (const typename T::Element*)weights;
  // With more than four rows the block of w must still be in L1 when the second group comes.
  int64_t depth = rows <= 4 ? k : 8;
  for (int64_t i = 0; i < k; i += depth) {
    int64_t count = k - i < depth ? k - i : depth;
    for (int64_t r = 0; r < rows; r += 4) {
      const float* xr = x + r * x_stride + i;
      const typename T::Element* wi = w + i * w_stride;
      float* out = y + r * y_stride;
      switch (rows - r) {
        case 1: axpy_rows<T, 1>(count, xr, x_stride, wi, w_stride, columns, out, y_stride); break;
        case 2: axpy_rows<T, 2>(count, xr, x_stride, wi, w_stride, columns, out, y_stride); break;
        case 3: axpy_rows<T, 3>(count, xr, x_stride, wi, w_stride, columns, out, y_stride); break;
        default: axpy_rows<T, 4>(count, xr, x_stride, wi, w_stride, columns, out, y_stride);
      }
    }
  }
}

// ---- epilogue ----------------------------------------------------------------------------------

// exp to about 1 ulp: 2^n times a Taylor polynomial on [-ln2/2, ln2/2], whose rest is below 1e-8.
static inline V exp(V x) {
  x = min(broadcast(88.0f), max(broadcast(-87.0f), x));
  V n = round(mul(x, broadcast(1.44269504f)));
  V r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  V p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return mul(p, exp2_integral(n));
}

static inline V sigmoid(V x) {
  return div(broadcast(1.0f), add(broadcast(1.0f), exp(sub(zero(), x))));
}

// Complementary error function of z >= 0 as t exp(p(t) - z^2), t = 1 / (1 + z/2). p is a minimax fit
// of degree 9 on z <= 13 (error 6e-8, 3e-7 in f32); being relative, it keeps gelu's left tail accurate.
static inline V erfc_positive(V z) {
  V t = div(broadcast(1.0f), fma(broadcast(0.5f), z, broadcast(1.0f)));
  constexpr float fit[] = {0.15790145f,   -0.751439193f,  1.32275928f,  -0.916890798f, 0.101755387f,
                           -0.0950703515f, 0.06717664f,   0.379883431f, 0.999409813f,  -1.2654856f};
  V p = broadcast(fit[0]);
  for (int i = 1; i < 10; i++) p = fma(p, t, broadcast(fit[i]));
  return mul(t, exp(fma(sub(zero(), z), z, p)));
}

static inline V activate(Activation activation, V x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return max(zero(), x);
    case Activation::silu: return mul(x, sigmoid(x));
    case Activation::gelu_tanh: {
      // 0.5 (1 + tanh u) = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
      V u = mul(x, fma(mul(x, x), broadcast(0.0713548163f), broadcast(1.59576912f)));
      return mul(x, sigmoid(u));
    }
    case Activation::gelu_erf: {
      V tail = mul(broadcast(0.5f), erfc_positive(mul(abs(x), broadcast(0.707106781f))));
      return mul(x, select_negative(x, tail, sub(broadcast(1.0f), tail)));
    }
  }
  return x;
}

static inline V finish1(const FinishRow& row, const float* acc, const float* bias,
                        const float* residual) {
  V x = load(acc);
  if (bias) x = add(x, load(bias));
  x = activate(row.activation, x);
  return residual ? add(x, load(residual)) : x;
}

static void finish(const FinishRow& row, int64_t columns) {
  int64_t c = 0;
  auto at = [](const float* p, int64_t i) { return p ? p + i : p; };
  for (; c + kLanes <= columns; c += kLanes) {
    V x = finish1(row, row.acc + c, at(row.bias, c), at(row.residual, c));
    if (row.type == Type::f32) store((float*)row.out + c, x);
    else if (row.type == Type::f16) store_f16((uint16_t*)row.out + c, x);
    else store_bf16((uint16_t*)row.out + c, x);
  }
  if (c == columns) return;
  float acc[kStep], bias[kStep], residual[kStep], f32[kLanes];
  uint16_t half[kLanes];
  copy_padded(row.acc + c, columns - c, acc);
  if (row.bias) copy_padded(row.bias + c, columns - c, bias);
  if (row.residual) copy_padded(row.residual + c, columns - c, residual);
  V x = finish1(row, acc, row.bias ? bias : nullptr, row.residual ? residual : nullptr);
  if (row.type == Type::f32) store(f32, x);
  else if (row.type == Type::f16) store_f16(half, x);
  else store_bf16(half, x);
  for (int64_t i = 0; c < columns; i++, c++) {
    if (row.type == Type::f32) ((float*)row.out)[c] = f32[i];
    else ((uint16_t*)row.out)[c] = half[i];
  }
}

// ---- yardstick ---------------------------------------------------------------------------------

static uint64_t read(const void* data, int64_t bytes) {
  auto p = (const float*)data;
  const int64_t count = bytes / 4;
  V acc[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int v = 0; v < 4; v++) acc[v] = exclusive_or(acc[v], load(p + i + v * kLanes));
  uint64_t words[kLanes / 2], result = 0;
  V all = exclusive_or(exclusive_or(acc[0], acc[1]), exclusive_or(acc[2], acc[3]));
  __builtin_memcpy(words, &all, sizeof(words));
  for (uint64_t word : words) result ^= word;
  for (i *= 4; i < bytes; i++) result ^= (uint64_t)((const unsigned char*)data)[i] << i % 8 * 8;
  return result;
}

// ---- the table ---------------------------------------------------------------------------------

#define BY_TYPE(function, type, ...)                        \
  switch (type) {                                           \
    case Type::f32: return function<F32>(__VA_ARGS__);      \
    case Type::f16: return function<F16>(__VA_ARGS__);      \
    default: return function<BF16>(__VA_ARGS__);            \
  }

static void load_any(Type t, const void* src, int64_t ss, int64_t r, int64_t c, float* dst, int64_t ds) {
  BY_TYPE(load_rows, t, src, ss, r, c, dst, ds)
}
static void load_transposed_any(Type t, const void* src, int64_t ss, int64_t r, int64_t c, float* dst, int64_t ds) {
  BY_TYPE(load_columns, t, src, ss, r, c, dst, ds)
}
static void load_strips_any(Type t, const void* src, int64_t ss, int64_t d, int64_t c, float* dst) {
  BY_TYPE(load_strips, t, src, ss, d, c, dst)
}
static void dot_any(Type t, int64_t r, int64_t k, int64_t head, const float* x, int64_t xs, const void* w,
                    int64_t ws, int64_t c, float* y, int64_t ys, bool acc) {
  BY_TYPE(dot, t, r, k, head, x, xs, w, ws, c, y, ys, acc)
}
static void axpy_any(Type t, int64_t r, int64_t k, const float* x, int64_t xs, const void* w, int64_t ws,
                     int64_t c, float* y, int64_t ys) {
  BY_TYPE(axpy, t, r, k, x, xs, w, ws, c, y, ys)
}

#undef BY_TYPE

static const Kernels kTable = {
    kName,          kTileRows,       kTileColumns, kStep,   load_any,        load_transposed_any,
    load_strips_any, tile,           order_for_dot, dot_any, axpy_any, order_from_axpy, finish, read,
};
