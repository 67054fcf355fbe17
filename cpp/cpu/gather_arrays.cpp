#include "gather_arrays.h"

#include "mlx/ops.h"

namespace mlx_tensorops::cpu {

namespace mx = mlx::core;

Type type_of(const char* op, const char* what, mx::Dtype type) {
  if (type == mx::float32) return Type::f32;
  if (type == mx::float16) return Type::f16;
  if (type == mx::bfloat16) return Type::bf16;
  fail(op, what, " is ", type, ", but must be float32, float16 or bfloat16; convert it with astype");
}

Integer integer_of(const char* op, const char* what, mx::Dtype type) {
  switch (type.val()) {
    case mx::Dtype::Val::uint8: return Integer::u8;
    case mx::Dtype::Val::uint16: return Integer::u16;
    case mx::Dtype::Val::uint32: return Integer::u32;
    case mx::Dtype::Val::uint64: return Integer::u64;
    case mx::Dtype::Val::int8: return Integer::i8;
    case mx::Dtype::Val::int16: return Integer::i16;
    case mx::Dtype::Val::int32: return Integer::i32;
    case mx::Dtype::Val::int64: return Integer::i64;
    default: fail(op, what, " is ", type, ", but must be integers, signed or unsigned, of 8 to 64 bits");
  }
}

Axes axes_of(const mx::array& x, int axes, const mx::Shape& batch, int64_t unit) {
  std::vector<int64_t> sizes(batch.begin(), batch.end()), strides(batch.size(), 0);
  for (int i = 0; i < axes; i++)
    if (x.shape(i) != 1) strides[batch.size() - axes + i] = x.strides(i) * unit;
  return {sizes, strides};
}

Indices indices_of(const char* op, const char* what, const mx::array& x, const mx::Shape& batch) {
  return {x.data<char>(), integer_of(op, what, x.dtype()), axes_of(x, static_cast<int>(x.ndim()), batch)};
}

mx::Shape leading(const mx::array& x, int trailing) {
  return mx::Shape(x.shape().begin(), x.shape().end() - trailing);
}

int64_t count(const mx::Shape& shape) {
  int64_t result = 1;
  for (int64_t size : shape) result *= size;
  return result;
}

mx::Stream cpu_stream(const char* op, mx::StreamOrDevice where) {
  mx::Stream stream = mx::to_stream(where);
  if (stream.device != mx::Device::cpu)
    fail(op, "the stream is on the GPU, but this operation runs on CPU streams only; pass stream=mx.cpu");
  return stream;
}

}  // namespace mlx_tensorops::cpu
