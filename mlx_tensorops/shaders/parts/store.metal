// Rounds once, after the epilogue. `row0` and `column0` place the fragment in C.
template <bool MASK_ROWS, bool MASK_COLUMNS, typename CT, typename T, typename E>
inline void store(thread CT& ct, device T* c, long c_m, int row0, int column0, int M, int N, thread const E& finish) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const int row = row0 + int(index[1]), column = column0 + int(index[0]);
    const bool inside = (!MASK_ROWS || row < M) && (!MASK_COLUMNS || column < N);
    if (ct.is_valid_element(i) && inside) c[row * c_m + column] = T(finish.apply(ct[i], row, column));
  }
}
