// Copies a ROWS x COLUMNS window to threadgroup memory: neighbouring threads take neighbouring elements of a stored row.
// Elements at or past `rows` or `columns` become zero, which adds nothing to any product.
template <int ROWS, int COLUMNS, int LD, bool MASK_ROWS, bool MASK_COLUMNS, typename T>
inline void stage(threadgroup T* to, const device T* from, long row_stride, long column_stride, int rows, int columns, int thread_index) {
  static_assert(THREADS % COLUMNS == 0 && ROWS * COLUMNS % THREADS == 0, "every thread copies the same number of elements of one column");
  const int column = thread_index % COLUMNS, first = thread_index / COLUMNS;
  const bool inside = !MASK_COLUMNS || column < columns;
  from += first * row_stride + column * column_stride;
  to += first * LD + column;
#pragma clang loop unroll(full)
  for (int row = 0; row < ROWS; row += THREADS / COLUMNS) {
    T value = T(0.0f);
    if (inside && (!MASK_ROWS || first + row < rows)) value = *from;
    *to = value;
    from += THREADS / COLUMNS * row_stride;
    to += THREADS / COLUMNS * LD;
  }
}
