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
