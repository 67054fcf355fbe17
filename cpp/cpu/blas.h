// A BLAS found at run time (OpenBLAS of the wheel scipy-openblas32), or Accelerate on macOS.
#pragma once

#include <cstdint>
#include <string>

namespace mlx_tensorops::cpu {

using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                       const float* a, int lda, const float* b, int ldb, float beta, float* c,
                       int ldc);

struct Blas {
  Sgemm sgemm = nullptr;  // null: not available, and `about` says why
  std::string about;
};

// Where to look; takes effect at the next blas(). An empty path means that none is installed.
void set_openblas_path(const std::string& path);

// Opens the library at the first call.
const Blas& blas();

// Makes the library run on the calling thread alone. Anyone may have changed that (threadpoolctl),
// so it is called before each use; when already so it costs 0.06 us.
void use_one_blas_thread();

}  // namespace mlx_tensorops::cpu
