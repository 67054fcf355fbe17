#include "gemm.h"

#include <cstring>
#include <memory>
#include <new>

#include "blas.h"
#include "pack.h"
#include "routes.h"

namespace mlx_tensorops::cpu {

float* scratch() {
  constexpr std::align_val_t line{64};
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, line); }
  };
  thread_local std::unique_ptr<float[], Free> block(
      static_cast<float*>(::operator new[](kScratch * sizeof(float), line)));
  return block.get();
}

int64_t scratch_limit() {
  return kScratch * sizeof(float);
}

int useful_threads(double seconds, const Settings& settings) {
  // Waking a parked worker takes 20-60 us; with less than that per thread one thread is faster.
  constexpr double kPerThread = 60e-6;
  return static_cast<int>(std::clamp(seconds / kPerThread, 1.0, double(settings.threads)));
}

int64_t batch_size(const Gemm& g) {
  int64_t size = 1;
  for (int64_t s : g.batch) size *= s;
  return size;
}

Slice slice(const Gemm& g, int64_t index) {
  Slice s{g.a, g.b, g.bias, g.residual,
          static_cast<char*>(g.out) + index * g.m * g.n * size_of(g.out_type)};
  int64_t a = 0, b = 0, bias = 0, residual = 0;
  for (size_t i = g.batch.size(); i-- > 0; index /= g.batch[i]) {
    const int64_t at = index % g.batch[i];
    a += at * g.a_batch[i];
    b += at * g.b_batch[i];
    bias += at * g.bias_batch[i];
    residual += at * g.residual_batch[i];
  }
  auto move = [](Matrix& m, int64_t elements) {
    if (m.data) m.data = static_cast<const char*>(m.data) + elements * size_of(m.type);
  };
  move(s.a, a);
  move(s.b, b);
  move(s.bias, bias);
  move(s.residual, residual);
  return s;
}

void finish(const Gemm& g, const Slice& s, const Kernels& kernels, int64_t r0, int64_t rows,
            int64_t c0, int64_t columns, const float* sums, int64_t sums_stride,
            float* finish_scratch) {
  constexpr int64_t most = kFinishScratch / 3;
  for (; columns > most; c0 += most, sums += most, columns -= most)
    finish(g, s, kernels, r0, rows, c0, most, sums, sums_stride, finish_scratch);
  float* bias = s.bias.data ? finish_scratch : nullptr;
  float* residual = s.residual.data ? finish_scratch + most : nullptr;
  const int64_t size = size_of(g.out_type);
  for (int64_t r = 0; r < rows; r++) {
    if (bias && (r == 0 || s.bias.row != 0))
      pack_rows(kernels, s.bias, r0 + r, 1, c0, columns, bias, 0);
    if (residual) pack_rows(kernels, s.residual, r0 + r, 1, c0, columns, residual, 0);
    char* out = s.out + ((r0 + r) * g.out_row + c0 * g.out_column) * size;
    char* row = g.out_column == 1 ? out : reinterpret_cast<char*>(finish_scratch + 2 * most);
    kernels.finish({sums + r * sums_stride, bias, residual, g.activation, g.out_type, row},
                   columns);
    if (row != out)
      for (int64_t c = 0; c < columns; c++)
        std::memcpy(out + c * g.out_column * size, row + c * size, size);
  }
}

namespace {

// The same product read the other way round: out^T = b^T a^T.
Gemm transposed(const Gemm& g) {
  auto flip = [](Matrix m) {
    std::swap(m.row, m.column);
    return m;
  };
  Gemm t = g;
  std::swap(t.m, t.n);
  t.a = flip(g.b);
  t.b = flip(g.a);
  t.bias = flip(g.bias);
  t.residual = flip(g.residual);
  std::swap(t.out_row, t.out_column);
  std::swap(t.a_batch, t.b_batch);
  return t;
}

// A dimension of one element has no stride worth the name: give it the one of a contiguous matrix,
// which is what the routes look for.
Matrix tidy(Matrix m, int64_t rows, int64_t columns) {
  if (columns == 1) m.column = m.row == 1 ? rows : 1;
  if (rows == 1) m.row = m.column == 1 ? columns : 1;
  return m;
}

// OpenBLAS is ahead of our tiles by 2-7 % on large f32 products and behind on small ones. Accelerate
// uses a matrix unit that has no instructions of its own, so there every type goes through it.
bool blas_pays(const Gemm& g) {
#if defined(__APPLE__)
  return true;
#else
  return blas_fits(g) && std::min({g.m, g.n, g.k}) >= 192;
#endif
}

// Small products spend more on preparing x and y than the packed tiles take for everything
// (4 x 4 x 4: 170 ns against 75; equal at about 512 elements of b for each row of a).
bool few_rows_pay(const Gemm& g) {
  return few_rows_fits(g) && g.n * g.k >= 512 * g.m;
}

}  // namespace

void gemm(const Gemm& given, const Settings& settings) {
  if (given.m == 0 || given.n == 0 || batch_size(given) == 0) return;
  Gemm g = given;
  g.a = tidy(g.a, g.m, g.k);
  g.b = tidy(g.b, g.k, g.n);
  bool few = false;
  if (settings.use_blas != UseBlas::always) {
    few = few_rows_pay(g);
    if (!few && g.n <= kFewRows) {
      Gemm t = transposed(g);
      if ((few = few_rows_pay(t))) g = t;
    }
  }
  if (few) return few_rows(g, settings);
  if (g.k > 0 && settings.use_blas != UseBlas::never && blas().sgemm &&
      (settings.use_blas == UseBlas::always || blas_pays(g))) {
    use_one_blas_thread();
    return blas_fits(g) ? by_blas(g, settings) : by_blas_blocks(g, settings);
  }
  by_tiles(g, settings);
}

}  // namespace mlx_tensorops::cpu
