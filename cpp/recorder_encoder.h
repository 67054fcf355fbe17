// Writes down what a launch would be, and runs nothing.
#pragma once

#include "encoder.h"

namespace mlx_tensorops {

class RecorderEncoder : public Encoder {
 public:
  struct Buffer {
    int index;
    Binding::Kind kind;
    std::size_t bytes;   // the span that the view reaches
    std::size_t offset;  // of the first element within that span
    std::vector<std::byte> data;  // of scalars
  };

  void kernel(const Row& row) override;
  void input(int index, const mlx::core::array& array) override;
  void output(int index, mlx::core::array& array) override;
  void bytes(int index, std::vector<std::byte> data) override;
  void dispatch(const Grid& grid) override;
  void zero(mlx::core::array& output) override;

  const Row* row() const { return row_; }  // none: nothing would be launched
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const Grid& grid() const { return grid_; }
  int zeroed() const { return zeroed_; }

 private:
  const Row* row_ = nullptr;
  std::vector<Buffer> buffers_;
  Grid grid_{};
  int zeroed_ = 0;
};

}  // namespace mlx_tensorops
