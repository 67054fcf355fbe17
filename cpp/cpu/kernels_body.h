// The kernels, written once over the vector type V of the including file (kernels_<isa>.cpp), inside
// its anonymous namespace: see kernels.h. No include guard and no library includes on purpose.

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
  static constexpr Type kType = Type::f32;
  static inline float one(float x) { return x; }
  static inline V load1(const float* p) { return load(p); }
  static inline void load2(const float* p, V& a, V& b) { a = load(p), b = load(p + kLanes); }
};

struct F16 {
  using Element = uint16_t;
  static constexpr Type kType = Type::f16;
  static inline float one(uint16_t x) { return widen_f16(x); }
  static inline V load1(const uint16_t* p) { return load_f16(p); }
  static inline void load2(const uint16_t* p, V& a, V& b) {
    a = load_f16(p), b = load_f16(p + kLanes);
  }
};

struct BF16 {
  using Element = uint16_t;
  static constexpr Type kType = Type::bf16;
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

#include "kernels_few.h"
#include "kernels_epilogue.h"
#include "kernels_quant_body.h"

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
                     int64_t c, int64_t head, float* y, int64_t ys) {
  BY_TYPE(axpy, t, r, k, x, xs, w, ws, c, head, y, ys)
}

#undef BY_TYPE

static const Kernels kTable = {
    kName,          kTileRows,       kTileColumns, kStep,   load_any,        load_transposed_any,
    load_strips_any, tile,           order_for_dot, dot_any, axpy_any, order_from_axpy, finish, read,
    &kQuantTable,
};
