// gemm, engine simdgroup, dataflow accumulate, row nn/aligned
// variant gemm_simdgroup_accumulate_nn_aligned_f32_f16_full_bm1_bn256_sg1x8_op1x32x1
//
// The host guarantees, before this kernel is enqueued:
// - layout: 1
// - 256 threads per threadgroup: 8 simdgroups of 32
// Generated; edit the template, not this file.
#include <metal_stdlib>
using namespace metal;

struct AccumulateParams {
  long elements;
  long slice_elements;
  int N;
  int slices;
};

constant constexpr int BM = 1, BN = 256;  // elements of C per threadgroup, one per thread

typedef half C;

// From the f32 accumulator to the value that is rounded: x
struct Epilogue {

  float apply(float x, long row, long column) const thread {
    return x;
  }
};

[[kernel, max_total_threads_per_threadgroup(256)]] void gemm_simdgroup_accumulate_nn_aligned_f32_f16_full_bm1_bn256_sg1x8_op1x32x1_15c65ad8(
    const device float* __restrict partials [[buffer(0)]],
    device half* __restrict c [[buffer(1)]],
    constant AccumulateParams& p [[buffer(2)]],
    uint3 block [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const long element = long(block.x) * BN + thread_index;
  if (element >= p.elements) return;
  const long row = element / p.N, column = element % p.N;

  Epilogue finish;

  // Always from the first slice of K to the last: the same inputs give the same bits.
  float sum = 0.0f;
  for (int slice = 0; slice < p.slices; ++slice) {
    sum += partials[slice * p.slice_elements + element];
  }
  c[element] = C(finish.apply(sum, row, column));  // rounds once
}
