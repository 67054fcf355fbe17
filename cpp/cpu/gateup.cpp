// What joins the results of the gate and the up projection.
#include <algorithm>
#include <cmath>

#include "gather.h"

namespace mlx_tensorops::cpu {

void apply_gate(const Kernels& kernels, const GateFunction& f, float* g, float* u, int64_t count) {
  auto activate = [&](Activation activation) { kernels.finish({g, nullptr, nullptr, activation, Type::f32, g}, count); };
  switch (f.gate) {
    case Gate::none: return;
    case Gate::swiglu: activate(Activation::silu); break;
    case Gate::geglu_tanh: activate(Activation::gelu_tanh); break;
    case Gate::geglu_erf: activate(Activation::gelu_erf); break;
    case Gate::swiglu_clamped:
      // g sigmoid(alpha g) = silu(alpha g) / alpha. The comparisons are false for NaN, which therefore stays.
      for (int64_t i = 0; i < count; i++) {
        g[i] = f.alpha * (g[i] > f.limit ? f.limit : g[i]);
        u[i] = (u[i] > f.limit ? f.limit : u[i] < -f.limit ? -f.limit : u[i]) + 1.0f;
      }
      activate(Activation::silu);
      for (int64_t i = 0; i < count; i++) g[i] /= f.alpha;
  }
  for (int64_t i = 0; i < count; i++) g[i] *= u[i];
}

}  // namespace mlx_tensorops::cpu
