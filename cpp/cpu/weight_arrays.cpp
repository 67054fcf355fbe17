#include "weight_arrays.h"

#include <cstring>
#include <mutex>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace mlx_tensorops::cpu {
namespace {

namespace mx = mlx::core;

constexpr std::pair<const char*, Codes> kCodes[] = {
    {"unsigned", Codes::integer}, {"e2m1", Codes::e2m1}, {"e4m3", Codes::e4m3}, {"table", Codes::table}};
constexpr std::pair<const char*, ScaleType> kScales[] = {
    {"float", ScaleType::floating}, {"e4m3", ScaleType::e4m3}, {"e8m0", ScaleType::e8m0}};

template <typename Value, std::size_t kCount>
Value named(const char* op, const char* what, const std::pair<const char*, Value> (&table)[kCount], const std::string& name) {
  std::string names;
  for (auto& [known, value] : table) {
    if (name == known) return value;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  fail(op, what, " '", name, "' are not known; nearest: ", names);
}

// Bit for bit: a table may hold NaN.
bool same(const NativeFormat& a, const NativeFormat& b) {
  auto &x = std::get<4>(a), &y = std::get<4>(b);
  return std::get<0>(a) == std::get<0>(b) && std::get<1>(a) == std::get<1>(b) && std::get<2>(a) == std::get<2>(b) &&
         std::get<3>(a) == std::get<3>(b) && x.size() == y.size() && (x.empty() || !std::memcmp(x.data(), y.data(), x.size() * sizeof(float)));
}

// Elements of any strides, row-major.
void copy_elements(const char* src, char* dst, const mx::Shape& shape, const mx::Strides& strides, int64_t size, int axis = 0) {
  if (axis == static_cast<int>(shape.size())) {
    std::memcpy(dst, src, size);
    return;
  }
  int64_t block = size;
  for (int i = axis + 1; i < static_cast<int>(shape.size()); i++) block *= shape[i];
  for (int i = 0; i < shape[axis]; i++) copy_elements(src + i * strides[axis] * size, dst + i * block, shape, strides, size, axis + 1);
}

mx::array rows_contiguous(const mx::array& x, mx::Stream stream, std::vector<mx::array>& kept) {
  if (x.shape(-1) <= 1 || x.strides(-1) == 1 || x.size() == 0) return x;
  mx::array copy(x.shape(), x.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  mx::cpu::get_command_encoder(stream).dispatch(
      [src = x.data<char>(), dst = copy.data<char>(), shape = x.shape(), strides = x.strides(), size = static_cast<int64_t>(x.itemsize())] {
        copy_elements(src, dst, shape, strides, size);
      });
  kept.push_back(copy);
  return copy;
}

}  // namespace

std::shared_ptr<const WeightFormat> format_of(const char* op, const NativeFormat& native) {
  static std::mutex mutex;
  static std::vector<std::pair<NativeFormat, std::shared_ptr<const WeightFormat>>> known;
  std::lock_guard lock(mutex);
  for (auto& [names, format] : known)
    if (same(names, native)) return format;
  auto& [codes, bits, group, scale, values] = native;
  WeightFormat format;
  format.codes = named(op, "codes", kCodes, codes);
  format.scale = named(op, "scales", kScales, scale);
  format.bits = bits;
  format.group = group;
  if (format.codes == Codes::table) {
    if (bits < 1 || bits > 8 || values.size() != std::size_t(1) << bits)
      fail(op, "a table of ", values.size(), " values does not fit codes of ", bits, " bits; nearest: one value for each code");
    std::copy(values.begin(), values.end(), format.values);
  }
  known.emplace_back(native, std::make_shared<const WeightFormat>(finished(format)));
  return known.back().second;
}

WeightSizes weight_sizes(const char* op, const WeightFormat* format, bool transpose, const mx::array& w,
                         const std::optional<mx::array>& scales, const std::optional<mx::array>& biases) {
  if (w.ndim() < 2) fail(op, "w is ", w.shape(), ", but needs two dimensions or more");
  mx::Shape batch = leading(w, 2);
  const int64_t rows = w.shape(-2);
  int64_t columns = w.shape(-1);
  if (!format) {
    type_of(op, "w", w.dtype());
    if (scales || biases) fail(op, "dense weights have no scales and no biases");
    return transpose ? WeightSizes{batch, columns, rows} : WeightSizes{batch, rows, columns};
  }
  if (w.dtype() != mx::uint32) fail(op, "w is ", w.dtype(), ", but packed weights are uint32");
  if (!scales) fail(op, "quantised weights need scales");
  columns = columns * 32 / format->bits;
  auto check = [&](const char* name, const mx::array& x, bool floating) {
    if (floating) type_of(op, name, x.dtype());
    else if (x.dtype() != mx::uint8) fail(op, name, " are ", x.dtype(), ", but this format stores them as uint8");
    if (x.ndim() < 2 || x.shape(-2) != rows || x.shape(-1) * format->group != columns ||
        columns * format->bits != int64_t(w.shape(-1)) * 32)
      fail(op, name, " are ", x.shape(), " and w is ", w.shape(), ", but with ", format->bits, " bits and groups of ", format->group,
           " weights they must be [..., rows, size / ", format->group, "] and [..., rows, size * ", format->bits, " / 32] of the same size");
    batch = mx::broadcast_shapes(batch, leading(x, 2));
  };
  const bool floating = format->scale == ScaleType::floating;
  check("scales", *scales, floating);
  if (biases) {
    check("biases", *biases, true);
    if (floating && biases->dtype() != scales->dtype())
      fail(op, "biases are ", biases->dtype(), " and scales ", scales->dtype(), ", but they must agree");
  }
  return transpose ? WeightSizes{batch, columns, rows} : WeightSizes{batch, rows, columns};
}

WeightBatch weight_batch(const WeightFormat* format, bool transpose, const mx::array& given, const std::optional<mx::array>& scales,
                         const std::optional<mx::array>& biases, const mx::Shape& batch, mx::Stream stream,
                         std::vector<mx::array>& kept) {
  const mx::array w = format ? rows_contiguous(given, stream, kept) : given;
  WeightBatch result;
  Weights& first = result.first;
  first.format = format;
  first.transpose = transpose;
  const int64_t rows = w.shape(-2), columns = format ? int64_t(w.shape(-1)) * 32 / format->bits : w.shape(-1);
  first.k = transpose ? columns : rows;
  first.n = transpose ? rows : columns;
  auto describe = [&](const mx::array& x, const char*& data, int64_t& row, Axes& axes) {
    data = x.data<char>();
    row = x.strides(-2) * static_cast<int64_t>(x.itemsize());
    axes = axes_of(x, static_cast<int>(x.ndim()) - 2, batch, static_cast<int64_t>(x.itemsize()));
  };
  describe(w, first.w, first.w_row, result.w);
  first.w_step = w.strides(-1) * static_cast<int64_t>(w.itemsize());
  if (!format) first.type = type_of("weights", "w", w.dtype());
  if (scales) {
    if (scales->dtype() != mx::uint8) first.type = type_of("weights", "scales", scales->dtype());
    describe(rows_contiguous(*scales, stream, kept), first.scales, first.scales_row, result.scales);
  }
  if (biases) {
    first.type = type_of("weights", "biases", biases->dtype());
    describe(rows_contiguous(*biases, stream, kept), first.biases, first.biases_row, result.biases);
  }
  return result;
}

}  // namespace mlx_tensorops::cpu
