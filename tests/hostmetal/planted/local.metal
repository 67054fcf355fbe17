// Arrays in a thread's own memory.
#include <metal_stdlib>
using namespace metal;

struct Window { float v[3]; char tag[2]; };

kernel void window(const device float* x [[buffer(0)]], device float* y [[buffer(1)]], const device int* pick [[buffer(2)]],
                   constant int& bug [[buffer(3)]], uint at [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  float w[5];
  const int last = bug == 1 ? 5 : 4;
  for (int i = 0; i <= last; ++i) {
    const int source = clamp(int(at) + i - 2, 0, int(n) - 1);
    w[i] = x[source];  // @1 local_overrun
  }
  float m[3][4];
  for (int r = 0; r < (bug == 2 ? 4 : 3); ++r)
    for (int c = 0; c < (bug == 3 ? 5 : 4); ++c)
      m[r][c] = w[(r + c) % 5];  // @2 local_overrun @3 local_overrun
  Window s;
  for (int i = 0; i < 3; ++i) s.v[i] = m[i][0];
  s.tag[0] = s.tag[1] = 0;
  const int j = bug == 4 ? pick[at] : pick[at] % 5;
  float sum = w[j];  // @4 local_overrun
  sum += w[bug == 5 ? j - 5 : j];  // @5 local_overrun
  sum += s.v[bug == 6 ? 3 : 2];  // @6 local_overrun
  sum += s.tag[bug == 7 ? int(at % 3) : 0];  // @7 local_overrun
  if (bug == 8) m[2][int(at % 2) + 3] = 0.0f;  // @8 local_overrun
  y[at] = sum + m[0][1];
}
