// Products of gathered rows with the weights of their experts: the engine below the operations.
#pragma once

#include <optional>
#include <vector>

#include "weight_arrays.h"

namespace mlx_tensorops::cpu {

// What joins the results g and u of two projections; `none` keeps both.
enum class Gate : int32_t { none, swiglu, geglu_tanh, geglu_erf, swiglu_clamped };

struct GateFunction {
  Gate gate = Gate::none;
  float alpha = 1.702f, limit = 7.0f;  // of swiglu_clamped

  bool operator==(const GateFunction&) const = default;
};

// g[i] = gate(g[i], u[i]) in f32; u is overwritten, too.
void apply_gate(const Kernels&, const GateFunction&, float* g, float* u, int64_t count);

// One stack of weights, with what is done to its sums.
struct Projection {
  WeightBatch weights;
  int64_t experts = 0;
  const float* global_scale = nullptr;  // null: none
  Axes global_scales;
  float divisor = 1.0f;
  Matrix bias;  // of expert 0: one row; data may be null
  Axes bias_rows;

  // sums = sums * global scale + bias, of columns n0.. of that expert. `scratch` takes `columns` floats.
  void scale_and_bias(const Kernels&, int64_t expert, int64_t n0, int64_t columns, float* sums, int64_t stride, int64_t rows,
                      float* scratch) const;
};

// Where the rows of x are: pair p takes the `m` rows of the p-th matrix of the batch, or of the one that lhs names.
struct RowSource {
  Matrix x;    // of the first matrix
  Axes batch;  // elements to each matrix
  std::optional<Indices> lhs;
  int64_t matrices = 0;
  int64_t m = 1;
  int64_t unit = 1;  // divides every distance between rows, in elements

  // False if lhs names no matrix of the batch.
  bool locate(int64_t pair, int64_t& elements) const {
    const int64_t matrix = lhs ? lhs->at(pair) : pair;
    if (lhs && (matrix < 0 || matrix >= matrices)) return false;
    elements = batch.offset(matrix);
    return true;
  }
};

// Positions begin .. end - 1 of a walk's order, of one expert; -1: the results are zeros.
struct Run {
  int64_t expert, begin, end;
};

struct Walk {
  std::vector<int32_t> order;  // of pairs
  std::vector<Run> runs;
};

// At most block_rows() rows of one run, read where they are: nothing is copied.
class RowBlock {
 public:
  // Takes rows first .. last - 1 (position * m + row of the matrix), as far as one base pointer and 32-bit indices reach. Returns where
  // it stopped.
  int64_t take(const RowSource&, const std::vector<int32_t>& order, int64_t first, int64_t last);

  const Rows& rows() const { return rows_; }
  int64_t target(int64_t row) const { return target_[row]; }  // row of the result

 private:
  Rows rows_;
  int32_t index_[block_rows()];
  int64_t target_[block_rows()];
};

// A tile plan as arrays. Its tiles may come in any sequence.
struct Tiles {
  Indices expert, start, count, order;
  int64_t tiles = 0;
};

// Pairs first .. first + count - 1, experts ascending.
Walk walk_by_expert(const Indices& ids, const RowSource&, int64_t first, int64_t count, int64_t experts);
// Throws std::runtime_error unless every pair is in one tile, and that tile is of its expert.
Walk walk_by_plan(const char* op, const Tiles&, const Indices& ids, const RowSource&, int64_t pairs, int64_t experts);

constexpr int kMostProjections = 2;

struct Gather {
  const char* op = "";
  std::vector<Projection> projections;  // of one format, k and n
  RowSource source;
  Indices ids;
  int64_t pairs = 0;
  std::optional<Tiles> plan;
  Activation activation = Activation::none;  // of a single projection
  GateFunction gate;                         // of two
  Type out_type = Type::f32;
  std::vector<char*> out;  // [pairs * m, n]: one for each projection, or the gate's
};

void gather(const Gather&, const Settings&);

// out[t] = sum over j < k of scores[t, j] * (x[t, j] @ W[ids[t, j]]), j in ascending order. The source's pairs are (t, j).
struct Combine {
  Projection projection;
  RowSource source;  // m = 1
  Indices ids;
  int64_t tokens = 0, k = 0;
  const char* scores = nullptr;
  Type scores_type = Type::f32;
  Axes score;
  Type out_type = Type::f32;
  char* out = nullptr;  // [tokens, n]
};

void combine(const Combine&, const Settings&);

}  // namespace mlx_tensorops::cpu
