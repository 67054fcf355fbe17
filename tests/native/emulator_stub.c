/* A stand-in for the emulator, to test the C ABI from a graph node to a kernel without any of it.
 * It runs each kernel as one plain C call, shows it copies of exactly the bytes it was given with NaN
 * around them (a read outside is seen in the result), and remembers the launch. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hm_abi.h"

hm_launch last_launch;
hm_options last_options;
hm_buffer last_buffers[HM_MAX_BUFFERS];

enum { GUARD = 256, POISON = 0xFF };

static int findings_of_next_kernel;

int stub_dispatch(const hm_launch* launch, const hm_options* options, hm_result* result) {
  uint64_t addresses[HM_MAX_BUFFERS] = {0};
  char* copies[HM_MAX_BUFFERS] = {0};
  last_launch = *launch;
  last_options = *options;
  for (uint32_t i = 0; i < launch->buffer_count; ++i) {
    const hm_buffer* buffer = &launch->buffers[i];
    last_buffers[i] = *buffer;
    copies[i] = malloc(buffer->bytes + 2 * GUARD);
    memset(copies[i], POISON, buffer->bytes + 2 * GUARD);
    memcpy(copies[i] + GUARD, buffer->data, buffer->bytes);
    addresses[buffer->index] = (uint64_t)(uintptr_t)(copies[i] + GUARD + buffer->offset);
  }
  findings_of_next_kernel = 0;
  launch->entry(addresses);
  for (uint32_t i = 0; i < launch->buffer_count; ++i) {
    if (launch->buffers[i].writable) {
      memcpy(launch->buffers[i].data, copies[i] + GUARD, launch->buffers[i].bytes);
    }
    free(copies[i]);
  }
  result->counters.matmul2d = 7;
  result->counters.threadgroups = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  result->counters.device_load[1] = 11;
  result->findings = findings_of_next_kernel > 0 ? findings_of_next_kernel : 0;
  if (findings_of_next_kernel) {
    result->text_bytes = snprintf(result->text, result->text_capacity, "%s",
                                  findings_of_next_kernel < 0 ? "group is larger than max_threads"
                                                              : "{\"kind\": \"out_of_bounds\"}\n{\"kind\": \"divergence\"}");
  }
  return findings_of_next_kernel;
}

/* a, b, c, {M, N, K, strides of a, strides of b}: any layout. */
struct matmul_args {
  int32_t M, N, K;
  int64_t am, ak, bk, bn;
};

void matmul(uint64_t* buffers) {
  const float* a = (const float*)(uintptr_t)buffers[0];
  const float* b = (const float*)(uintptr_t)buffers[1];
  float* c = (float*)(uintptr_t)buffers[2];
  const struct matmul_args* s = (const struct matmul_args*)(uintptr_t)buffers[3];
  for (int32_t m = 0; m < s->M; ++m) {
    for (int32_t n = 0; n < s->N; ++n) {
      double sum = 0;
      for (int32_t k = 0; k < s->K; ++k) {
        sum += (double)a[m * s->am + k * s->ak] * b[k * s->bk + n * s->bn];
      }
      c[(int64_t)m * s->N + n] = (float)sum;
    }
  }
}

/* x, y, x + y, x - y, {n}: two outputs. */
void sum_and_difference(uint64_t* buffers) {
  const float* x = (const float*)(uintptr_t)buffers[0];
  const float* y = (const float*)(uintptr_t)buffers[1];
  float* sum = (float*)(uintptr_t)buffers[2];
  float* difference = (float*)(uintptr_t)buffers[3];
  const int32_t n = *(const int32_t*)(uintptr_t)buffers[4];
  for (int32_t i = 0; i < n; ++i) {
    sum[i] = x[i] + y[i];
    difference[i] = x[i] - y[i];
  }
}

/* Reads one element before the view it was given. */
void reads_outside(uint64_t* buffers) {
  const float* a = (const float*)(uintptr_t)buffers[0];
  ((float*)(uintptr_t)buffers[2])[0] = a[-1];
}

void faulty(uint64_t* buffers) { (void)buffers; findings_of_next_kernel = 2; }
void refused(uint64_t* buffers) { (void)buffers; findings_of_next_kernel = -1; }
