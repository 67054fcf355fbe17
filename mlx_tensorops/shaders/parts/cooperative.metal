// Where this lane's slots of a fragment lie, counted from the fragment's origin. Queried once, outside the
// K loop. Coordinate [0] is the stored column, [1] the stored row. Rows and columns past the matrix repeat
// the last one: their products land in elements of C that are never stored.
template <bool CLAMP_ROWS, bool CLAMP_COLUMNS, typename CT, typename Offset>
inline void locate(thread CT& ct, thread Offset* at, long row_stride, long column_stride, int rows, int columns) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const bool valid = ct.is_valid_element(i);  // other slots read element (0, 0), clamped, and are ignored
    int row = valid ? int(index[1]) : 0, column = valid ? int(index[0]) : 0;
    if (CLAMP_ROWS) row = min(row, rows - 1);
    if (CLAMP_COLUMNS) column = min(column, columns - 1);
    at[i] = Offset(row * row_stride + column * column_stride);
  }
}

// From device or threadgroup memory.
template <typename CT, typename Pointer, typename Offset>
inline void fill(thread CT& ct, Pointer origin, thread const Offset* at) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = origin[at[i]];
  }
}

// The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
template <int K_COORDINATE, typename CT, typename T, typename Offset>
inline void fill_tail(thread CT& ct, const device T* origin, thread const Offset* at, int k_left) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const bool inside = ct.is_valid_element(i) && int(index[K_COORDINATE]) < k_left;
    T value = T(0.0f);
    if (inside) value = origin[at[i]];
    ct[i] = value;
  }
}

{% include "parts/zero.metal" %}

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
