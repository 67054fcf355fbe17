// What the CPU engine runs with: instruction set, threads, BLAS. One set for the process.
#pragma once

#include <string>
#include <vector>

#include "gemm.h"

namespace mlx_tensorops::cpu {

// Instruction sets that this processor has, best first.
std::vector<const Kernels*> usable_kernels();

Settings settings();

// 0 means one thread for each core this process may use.
void set_threads(int threads);
// "" means the best one.
void set_instruction_set(const std::string& name);
void set_use_blas(const std::string& mode);  // "auto", "never", "always"
std::string use_blas_name();

}  // namespace mlx_tensorops::cpu
