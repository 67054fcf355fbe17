// Part of kernels_body.h: a few rows of x, weights streamed once. Included there, inside the anonymous namespace of kernels_<isa>.cpp.

// Where load2() puts element i of a step.
static inline int64_t place(Type type, int64_t i) {
  return type == Type::bf16 ? i / 2 + i % 2 * kLanes : i;
}

// What is left of a row after whole steps stands at the end of its step, so that the step can be read from
// w where it overlaps the one before; in a row shorter than a step, at the beginning.
static inline int64_t begin_of_rest(int64_t row, int64_t left) {
  return row < kStep ? 0 : kStep - left;
}

static void order_edge(Type type, const float* src, int64_t begin, int64_t count, float* dst) {
  for (int64_t i = 0; i < kStep; i++) dst[i] = 0.0f;
  for (int64_t i = 0; i < count; i++) dst[place(type, begin + i)] = src[i];
}

static void order_for_dot(Type type, const float* src, int64_t k, int64_t head, float* dst) {
  if (head) order_edge(type, src, 0, head, dst), dst += kStep;
  int64_t i = head;
  for (; i + kStep <= k; i += kStep, dst += kStep) {
    if (type != Type::bf16)
      for (int64_t j = 0; j < kStep; j++) dst[j] = src[i + j];
    else
      for (int64_t j = 0; j < kLanes; j++) {
        dst[j] = src[i + 2 * j];
        dst[kLanes + j] = src[i + 2 * j + 1];
      }
  }
  if (i < k) order_edge(type, src + i, begin_of_rest(k, k - i), k - i, dst);
}

static void order_from_axpy(Type type, const float* src, int64_t columns, int64_t head, float* dst) {
  auto edge = [&](int64_t at, int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; i++) dst[at + i] = src[place(type, begin + i)];
    src += kStep;
  };
  if (head) edge(0, 0, head);
  int64_t c = head;
  for (; c + kStep <= columns; c += kStep, src += kStep) {
    if (type != Type::bf16)
      for (int64_t j = 0; j < kStep; j++) dst[c + j] = src[j];
    else
      for (int64_t j = 0; j < kLanes; j++) {
        dst[c + 2 * j] = src[j];
        dst[c + 2 * j + 1] = src[kLanes + j];
      }
  }
  if (c < columns) edge(c, begin_of_rest(columns, columns - c), columns - c);
}

// A step of w that counts only in part is loaded whole and masked: copying the part into a padded step would
// cost a failed store-to-load forwarding a row (25 of 200 us at K = N = 2048). Zeros in x or y would not do:
// zero times an infinite weight is NaN.
struct Edges {
  float head[kStep], rest[kStep];  // all bits set where an element counts
};

template <typename T>
static Edges edges_of(int64_t row, int64_t head) {
  const uint32_t bits[2] = {0, 0xffffffffu};
  const int64_t rest = begin_of_rest(row, (row - head) % kStep);
  Edges edges;
  for (int64_t i = 0; i < kStep; i++) {
    __builtin_memcpy(edges.head + place(T::kType, i), bits + (i < head), 4);
    __builtin_memcpy(edges.rest + place(T::kType, i), bits + (i >= rest), 4);
  }
  return edges;
}

// Calls step(w, stride of w, offset in the ordered row, mask) for every step of kCount rows of w.
template <typename T, int kCount, typename Step>
static inline __attribute__((always_inline)) void for_steps(const typename T::Element* w, int64_t w_stride,
                                                            int64_t row, int64_t head, const Edges& edges,
                                                            Step step) {
  auto whole = [](V v, int64_t) { return v; };
  auto masked = [](const float* mask) { return [mask](V v, int64_t i) { return bits_of_both(v, load(mask + i)); }; };
  if (row < kStep) {
    typename T::Element padded[kCount][kStep];
    for (int j = 0; j < kCount; j++) copy_padded(w + j * w_stride, row, padded[j]);
    return step(padded[0], kStep, 0, whole);
  }
  int64_t at = head, i = head ? kStep : 0;
  if (head) step(w, w_stride, 0, masked(edges.head));
  for (; at + kStep <= row; at += kStep, i += kStep) step(w + at, w_stride, i, whole);
  if (at < row) step(w + row - kStep, w_stride, i, masked(edges.rest));
}

// kRows rows of x against kWeights rows of w.
template <typename T, int kRows, int kWeights>
static inline void dot_block(int64_t k, int64_t head, const Edges& edges, const float* x, int64_t x_stride,
                             const typename T::Element* w, int64_t w_stride, float* y,
                             int64_t y_stride, bool accumulate) {
  // Two accumulators per output where registers allow: one FMA chain has a latency of 4 cycles.
  constexpr int kChains = kRows == 1 ? 2 : 1;
  V acc[kRows][kWeights][kChains];
  for (int r = 0; r < kRows; r++)
    for (int j = 0; j < kWeights; j++)
      for (int h = 0; h < kChains; h++) acc[r][j][h] = zero();
  auto step = [&](const typename T::Element* p, int64_t stride, int64_t i, auto part) __attribute__((always_inline)) {
    for (int j = 0; j < kWeights; j++) {
      V a, b;
      T::load2(p + j * stride, a, b);
      a = part(a, 0), b = part(b, kLanes);
      for (int r = 0; r < kRows; r++) {
        const float* in = x + r * x_stride + i;
        acc[r][j][0] = fma(a, load(in), acc[r][j][0]);
        acc[r][j][kChains - 1] = fma(b, load(in + kLanes), acc[r][j][kChains - 1]);
      }
    }
  };
  for_steps<T, kWeights>(w, w_stride, k, head, edges, step);
  for (int r = 0; r < kRows; r++)
    for (int j = 0; j < kWeights; j++) {
      V total = kChains == 2 ? add(acc[r][j][0], acc[r][j][1]) : acc[r][j][0];
      float* out = y + r * y_stride + j;
      *out = accumulate ? *out + sum(total) : sum(total);
    }
}

template <typename T, int kRows>
static void dot_rows(int64_t k, int64_t head, const Edges& edges, const float* x, int64_t x_stride,
                     const typename T::Element* w, int64_t w_stride, int64_t columns, float* y,
                     int64_t y_stride, bool accumulate) {
  constexpr int kWeights = kRows <= 3 ? 4 : 2;
  int64_t n = 0;
  for (; n + kWeights <= columns; n += kWeights)
    dot_block<T, kRows, kWeights>(k, head, edges, x, x_stride, w + n * w_stride, w_stride, y + n, y_stride,
                                  accumulate);
  for (; n < columns; n++)
    dot_block<T, kRows, 1>(k, head, edges, x, x_stride, w + n * w_stride, w_stride, y + n, y_stride,
                           accumulate);
}

// Weight rows that stay in L1/L2 while a second group of four rows of x visits them.
constexpr int64_t kDotColumns = 4;

template <typename T>
static void dot(int64_t rows, int64_t k, int64_t head, const float* x, int64_t x_stride, const void* weights,
                int64_t w_stride, int64_t columns, float* y, int64_t y_stride, bool accumulate) {
  auto w = (const typename T::Element*)weights;
  const Edges edges = edges_of<T>(k, head);
  int64_t group = rows <= 4 ? columns : kDotColumns;
  for (int64_t n = 0; n < columns; n += group) {
    int64_t count = columns - n < group ? columns - n : group;
    for (int64_t r = 0; r < rows; r += 4) {
      const float* xr = x + r * x_stride;
      const typename T::Element* wn = w + n * w_stride;
      float* out = y + r * y_stride + n;
      switch (rows - r) {
        case 1: dot_rows<T, 1>(k, head, edges, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        case 2: dot_rows<T, 2>(k, head, edges, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        case 3: dot_rows<T, 3>(k, head, edges, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate); break;
        default: dot_rows<T, 4>(k, head, edges, xr, x_stride, wn, w_stride, count, out, y_stride, accumulate);
      }
    }
  }
}

// kRows rows of x, kDeep rows of w, all columns.
template <typename T, int kRows, int kDeep>
static inline void axpy_block(const float* x, int64_t x_stride, const typename T::Element* w, int64_t w_stride,
                              int64_t columns, int64_t head, const Edges& edges, float* y, int64_t y_stride) {
  // Copies: stores to y could alias x, which would force a reload of every factor at every step.
  V factor[kRows][kDeep];
  for (int r = 0; r < kRows; r++)
    for (int k = 0; k < kDeep; k++) factor[r][k] = broadcast(x[r * x_stride + k]);
  auto step = [&](const typename T::Element* p, int64_t stride, int64_t i, auto part) __attribute__((always_inline)) {
    float* out = y + i;
    V lo[kRows], hi[kRows];
    for (int r = 0; r < kRows; r++) {
      lo[r] = load(out + r * y_stride);
      hi[r] = load(out + r * y_stride + kLanes);
    }
    for (int k = 0; k < kDeep; k++) {
      V a, b;
      T::load2(p + k * stride, a, b);
      a = part(a, 0), b = part(b, kLanes);
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
  for_steps<T, kDeep>(w, w_stride, columns, head, edges, step);
}

template <typename T, int kRows>
static void axpy_rows(int64_t k, const float* x, int64_t x_stride, const typename T::Element* w, int64_t w_stride,
                      int64_t columns, int64_t head, const Edges& edges, float* y, int64_t y_stride) {
  int64_t i = 0;
  for (; i + kAxpyRows <= k; i += kAxpyRows)
    axpy_block<T, kRows, kAxpyRows>(x + i, x_stride, w + i * w_stride, w_stride, columns, head, edges, y, y_stride);
  for (; i < k; i++)
    axpy_block<T, kRows, 1>(x + i, x_stride, w + i * w_stride, w_stride, columns, head, edges, y, y_stride);
}

template <typename T>
static void axpy(int64_t rows, int64_t k, const float* x, int64_t x_stride, const void* weights, int64_t w_stride,
                 int64_t columns, int64_t head, float* y, int64_t y_stride) {
  auto w = (const typename T::Element*)weights;
  const Edges edges = edges_of<T>(columns, head);
  // With more than four rows the block of w must still be in L1 when the second group comes.
  int64_t depth = rows <= 4 ? k : kAxpyRows;
  for (int64_t i = 0; i < k; i += depth) {
    int64_t count = k - i < depth ? k - i : depth;
    for (int64_t r = 0; r < rows; r += 4) {
      const float* xr = x + r * x_stride + i;
      const typename T::Element* wi = w + i * w_stride;
      float* out = y + r * y_stride;
      switch (rows - r) {
        case 1: axpy_rows<T, 1>(count, xr, x_stride, wi, w_stride, columns, head, edges, out, y_stride); break;
        case 2: axpy_rows<T, 2>(count, xr, x_stride, wi, w_stride, columns, head, edges, out, y_stride); break;
        case 3: axpy_rows<T, 3>(count, xr, x_stride, wi, w_stride, columns, head, edges, out, y_stride); break;
        default: axpy_rows<T, 4>(count, xr, x_stride, wi, w_stride, columns, head, edges, out, y_stride);
      }
    }
  }
}
