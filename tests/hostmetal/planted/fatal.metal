// What would take the process down.
#include <metal_stdlib>
using namespace metal;

int deep(int n, thread int* chain) {
  int own[256];  // @4 stack_overflow
  own[n & 255] = chain[0] + n;  // @4 stack_overflow
  return n <= 0 ? own[n & 255] : deep(n - 1, own) + own[(n + 1) & 255 & n];  // @4 stack_overflow
}

kernel void fatal(device int* x [[buffer(0)]], constant int& bug [[buffer(1)]], uint at [[thread_position_in_grid]]) {
  int v = x[at];
  if (bug == 1) v = 7 / (x[at] - x[at]);  // @1 arithmetic
  if (bug == 2) {
    volatile device int* p = x;
    while (p[0] != -1) v += 1;  // @2 timeout
  }
  if (bug == 3) v = x[at + (1l << 40)];  // @3 crash
  if (bug == 4) { int seed[1] = {v}; v = deep(x[0] + 100000000, seed); }
  if (bug == 5) v = x[v % (x[at] - x[at])];  // @5 arithmetic
  if (bug == 6) x[at - (1l << 36)] = v;  // @6 crash
  if (bug == 7) for (;;) threadgroup_barrier(mem_flags::mem_none);  // @7 timeout
  x[at] = v + 1;
}
