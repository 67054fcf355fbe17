#include "primitive.h"

#include <algorithm>

#include "gather_arrays.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace mlx_tensorops::cpu {

namespace mx = mlx::core;

void CpuPrimitive::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  for (mx::array& out : outputs) out.set_data(mx::allocator::malloc(out.nbytes()));
  if (std::all_of(outputs.begin(), outputs.end(), [](const mx::array& out) { return out.size() == 0; })) return;
  auto& encoder = mx::cpu::get_command_encoder(stream());
  for (const mx::array& input : inputs) encoder.set_input_array(input);
  for (mx::array& out : outputs) encoder.set_output_array(out);
  Arrays kept;
  // MLX keeps the buffers of inputs and outputs alive until the task has run.
  encoder.dispatch(task(inputs, outputs, kept));
  encoder.add_temporaries(std::move(kept));
}

void CpuPrimitive::eval_gpu(const Arrays&, Arrays&) {
  fail(op_, "this operation runs on CPU streams only; pass stream=mx.cpu, or engine='auto' to the op");
}

}  // namespace mlx_tensorops::cpu
