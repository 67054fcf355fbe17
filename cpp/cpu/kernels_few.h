// Part of kernels_body.h: a few rows of x, weights streamed once. Included there, inside the anonymous namespace of kernels_<isa>.cpp.

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
