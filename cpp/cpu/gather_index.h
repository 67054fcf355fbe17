// Positions in batches of any strides, integers of any width read there, and rows grouped by expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mlx_tensorops::cpu {

// Axes of a batch with the strides of one operand over it; 0 where the operand is broadcast.
class Axes {
 public:
  Axes() = default;
  // Neighbours that one stride walks through become one axis: most often a single one is left.
  Axes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

  int64_t offset(int64_t position) const {
    if (sizes_.size() == 1) return position * strides_[0];
    int64_t result = 0;
    for (std::size_t i = sizes_.size(); i-- > 0; position /= sizes_[i])
      result += position % sizes_[i] * strides_[i];
    return result;
  }

 private:
  std::vector<int64_t> sizes_, strides_;
};

enum class Integer : int32_t { u8, u16, u32, u64, i8, i16, i32, i64 };

// An array of integers, broadcast to a batch; `axes` counts elements.
struct Indices {
  const void* data = nullptr;
  Integer type = Integer::i32;
  Axes axes;

  // Values from 2^63 on become -1: no array is that long.
  int64_t at(int64_t position) const;
};

// Positions 0 .. count - 1, those of expert 0 first, each expert's in their order. Group `experts` holds the
// positions whose id is out of range.
struct Groups {
  std::vector<int32_t> order;
  std::vector<int64_t> begin;  // experts + 2 entries

  int64_t experts() const { return static_cast<int64_t>(begin.size()) - 2; }
  int64_t size(int64_t group) const { return begin[group + 1] - begin[group]; }
};

// id_of(position) for first .. first + count - 1. Stable, and the same on every run.
template <typename F>
Groups group(F&& id_of, int64_t first, int64_t count, int64_t experts) {
  auto group_of = [&](int64_t i) {
    const int64_t id = id_of(first + i);
    return id < 0 || id >= experts ? experts : id;
  };
  Groups g;
  g.begin.assign(experts + 2, 0);
  for (int64_t i = 0; i < count; i++) g.begin[group_of(i) + 1]++;
  for (int64_t e = 0; e <= experts; e++) g.begin[e + 1] += g.begin[e];
  std::vector<int64_t> next(g.begin.begin(), g.begin.end() - 1);
  g.order.resize(count);
  for (int64_t i = 0; i < count; i++) g.order[next[group_of(i)]++] = static_cast<int32_t>(first + i);
  return g;
}

}  // namespace mlx_tensorops::cpu
