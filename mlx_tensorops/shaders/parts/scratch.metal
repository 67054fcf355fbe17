// From the lanes' fragments to rows of f32 in threadgroup memory.
template <typename CT>
inline void put(thread CT& ct, threadgroup float* scratch) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    if (ct.is_valid_element(i)) scratch[int(index[1]) * SCRATCH_LD + int(index[0])] = ct[i];
  }
}

// From there to C, neighbouring threads to neighbouring columns. Rounds once, after the epilogue.
template <bool MASK_ROWS, bool MASK_COLUMNS, typename T, typename E>
inline void store_block(const threadgroup float* scratch, device T* c, long c_m, int row0, int column0, int M, int N, int thread_index, thread const E& finish) {
  static_assert(THREADS % BN == 0, "every thread stores one column");
  const int in_block = thread_index % BN, column = column0 + in_block;
  if (MASK_COLUMNS && column >= N) return;
  for (int i = thread_index / BN; i < BM; i += THREADS / BN) {
    const int row = row0 + i;
    if (!MASK_ROWS || row < M) c[row * c_m + column] = T(finish.apply(scratch[i * SCRATCH_LD + in_block], row, column));
  }
}
