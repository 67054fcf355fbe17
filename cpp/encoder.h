// What a kernel launch needs from whoever runs it: Metal, the emulator, or a recorder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mlx/array.h"
#include "variant_set.h"

namespace mlx_tensorops {

using Grid = std::array<std::uint32_t, 3>;

class Encoder {
 public:
  virtual ~Encoder() = default;

  virtual void kernel(const Row& row) = 0;
  virtual void input(int index, const mlx::core::array& array) = 0;
  virtual void output(int index, mlx::core::array& array) = 0;
  virtual void bytes(int index, std::vector<std::byte> data) = 0;
  virtual void dispatch(const Grid& grid) = 0;
  // Instead of a launch: the output of a reduction over nothing.
  virtual void zero(mlx::core::array& output) = 0;
};

// The one path from evaluated inputs to a launch: guards, allocation, row, arguments, geometry.
void encode(const VariantSet& variants, const Arrays& inputs, Arrays& outputs, Encoder& encoder);

}  // namespace mlx_tensorops
