// Threadgroup memory from arguments and from variables, and the sizes of both.
#include <metal_stdlib>
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(128)]] void memory(
    const device float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& bug [[buffer(2)]],
    threadgroup float* s [[threadgroup(0)]], uint tid [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  threadgroup float own[128];
  s[bug == 1 ? tid + 1 : tid] = x[tid];  // @1 out_of_bounds
  own[tid] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float v = s[n - 1 - tid] + own[n - 1 - tid];  // @1 uninitialised
  if (bug == 2) {
    threadgroup float big[9000];  // @2 threadgroup_memory
    big[tid] = v;
    v += big[tid];
  }
  if (bug == 3) {
    threadgroup float first[4000];
    threadgroup half second[8192];  // @3 threadgroup_memory
    first[tid] = second[tid] = v;
    v += first[tid] + float(second[tid]);
  }
  if (bug == 4) v += s[-1];  // @4 out_of_bounds
  y[tid] = v;
}
