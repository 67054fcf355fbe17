// Runs a launch in the emulator, as one task of a CPU stream.
#pragma once

#include <memory>

#include "encoder.h"
#include "host_launcher.h"
#include "mlx/stream.h"

namespace mlx_tensorops {

class HostEncoder : public Encoder {
 public:
  HostEncoder(const VariantSet& variants, HostLauncher& launcher, mlx::core::Stream stream);
  ~HostEncoder() override;

  void kernel(const Row& row) override;
  void input(int index, const mlx::core::array& array) override;
  void output(int index, mlx::core::array& array) override;
  void bytes(int index, std::vector<std::byte> data) override;
  void dispatch(const Grid& grid) override;
  void zero(mlx::core::array& output) override;

 private:
  struct Launch;

  void buffer(int index, const mlx::core::array& array, bool writable);

  HostLauncher& launcher_;
  mlx::core::Stream stream_;
  std::shared_ptr<Launch> launch_;
};

}  // namespace mlx_tensorops
