// Runs a launch on the GPU through MLX's Metal command encoder. Only symbols that libmlx exports are
// used; the headers declare more than the library offers.
#pragma once

#include "encoder.h"
#include "mlx/backend/metal/device.h"
#include "mlx/stream.h"

namespace mlx_tensorops {

class MetalEncoder : public Encoder {
 public:
  MetalEncoder(const VariantSet& variants, mlx::core::Stream stream);

  void kernel(const Row& row) override;
  void input(int index, const mlx::core::array& array) override;
  void output(int index, mlx::core::array& array) override;
  void bytes(int index, std::vector<std::byte> data) override;
  void dispatch(const Grid& grid) override;
  void zero(mlx::core::array& output) override;

 private:
  const VariantSet& variants_;
  mlx::core::metal::Device& device_;
  mlx::core::metal::CommandEncoder& encoder_;
  const Row* row_ = nullptr;
};

}  // namespace mlx_tensorops
