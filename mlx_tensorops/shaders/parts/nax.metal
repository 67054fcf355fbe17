// Lane map of M5-class GPUs for one 16x32x16 operation on half, bfloat or relaxed float operands, as MLX relies on it
// (steel/gemm/nax.h): in each 16x16 fragment a lane holds four neighbours of one stored row and the four that stand
// eight rows further down. Apple documents no map; these kernels run only where a probe has confirmed this one.
inline int lane_row(uint lane) { return (lane >> 2 & 4) | (lane >> 1 & 3); }
inline int lane_column(uint lane) { return ((lane >> 2 & 2) | (lane & 1)) * 4; }

// Row and column of a lane's vector `v`: two per fragment, the second fragment right of the first or BELOW it.
template <bool BELOW>
inline int row_of(uint lane, int v) { return lane_row(lane) + v % 2 * 8 + (BELOW ? v / 2 * 16 : 0); }
template <bool BELOW>
inline int column_of(uint lane, int v) { return lane_column(lane) + (BELOW ? 0 : v / 2 * 16); }

// Where a lane's vectors of an operand lie, in elements from the operand's origin. PARTIAL: the matrix may end inside one.
template <int COUNT, bool BELOW, bool PARTIAL>
struct Vectors {
  int at[COUNT];
  int columns;  // of the matrix, from the origin on
  uint lane;
};

// Computed once, outside the K loop. Rows past the matrix repeat the last one: their products land in elements of C
// that are never stored.
template <bool CLAMP_ROWS, bool CLAMP_COLUMNS, int COUNT, bool BELOW>
inline void locate(uint lane, thread Vectors<COUNT, BELOW, CLAMP_COLUMNS>& places, long row_stride, long, int rows, int columns) {
#pragma clang loop unroll(full)
  for (int v = 0; v < COUNT; ++v) {
    int row = row_of<BELOW>(lane, v);
    if (CLAMP_ROWS) row = min(row, rows - 1);
    places.at[v] = int(row * row_stride) + column_of<BELOW>(lane, v);
  }
  places.columns = columns;
  places.lane = lane;
}

// Four neighbours, zero from element `inside` on. The host guarantees that whole vectors are aligned.
template <bool PARTIAL, typename T>
inline metal::vec<T, 4> load4(const device T* from, int inside) {
  if (!PARTIAL || inside >= 4) return *(const device metal::vec<T, 4>*)from;
  metal::vec<T, 4> x(T(0.0f));
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) {
    if (i < inside) x[i] = from[i];
  }
  return x;
}

// Device memory -> registers.
template <typename CT, typename T, int COUNT, bool BELOW, bool PARTIAL>
inline void read(thread CT&, thread metal::vec<T, 4>* values, const device T* origin, thread const Vectors<COUNT, BELOW, PARTIAL>& places) {
#pragma clang loop unroll(full)
  for (int v = 0; v < COUNT; ++v) {
    values[v] = load4<PARTIAL>(origin + places.at[v], places.columns - column_of<BELOW>(places.lane, v));
  }
}

// Registers -> cooperative tensor.
template <typename CT, typename T, int COUNT>
inline void put(thread CT& ct, thread const metal::vec<T, 4> (&values)[COUNT]) {
#pragma clang loop unroll(full)
  for (int v = 0; v < COUNT; ++v) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
      ct[4 * v + i] = values[v][i];
    }
  }
}

template <typename CT, typename T, int COUNT, bool BELOW, bool PARTIAL>
inline void fill(thread CT& ct, const device T* origin, thread const Vectors<COUNT, BELOW, PARTIAL>& places) {
  metal::vec<T, 4> values[COUNT];
  read(ct, values, origin, places);
  put(ct, values);
}

// The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
template <int K_COORDINATE, typename CT, typename T, int COUNT, bool BELOW, bool PARTIAL>
inline void fill_tail(thread CT& ct, const device T* origin, thread const Vectors<COUNT, BELOW, PARTIAL>& places, int k_left) {
  metal::vec<T, 4> values[COUNT];
#pragma clang loop unroll(full)
  for (int v = 0; v < COUNT; ++v) {
    const int row = row_of<BELOW>(places.lane, v), column = column_of<BELOW>(places.lane, v);
    const int end = K_COORDINATE == 0 ? k_left : row < k_left ? places.columns : 0;
    values[v] = load4<true>(origin + places.at[v], end - column);
  }
  put(ct, values);
}

// Rounds once, after the epilogue. `row0` and `column0` place the fragments in C. Stores move 8 bytes, the alignment that
// MLX gives every array it allocates: where an output begins is not known when the row is chosen.
template <bool MASK_ROWS, bool MASK_COLUMNS, typename CT, typename T, typename E>
inline void store(uint lane, thread CT& ct, device T* c, long c_m, int row0, int column0, int M, int N, thread const E& finish) {
  constexpr int WIDTH = 8 / sizeof(T);
#pragma clang loop unroll(full)
  for (int i = 0; i < 16; i += WIDTH) {
    const int row = row0 + row_of<false>(lane, i / 4), column = column0 + column_of<false>(lane, i / 4) + i % 4;
    if (MASK_ROWS && row >= M) continue;
    device T* to = c + row * c_m + column;
    if (!MASK_COLUMNS || (column + WIDTH <= N && c_m % WIDTH == 0)) {
      metal::vec<T, WIDTH> x;
#pragma clang loop unroll(full)
      for (int e = 0; e < WIDTH; ++e) {
        x[e] = T(finish.apply(ct[i + e], row, column + e));
      }
      *(device metal::vec<T, WIDTH>*)to = x;
    } else {
#pragma clang loop unroll(full)
      for (int e = 0; e < WIDTH; ++e) {
        if (column + e < N) to[e] = T(finish.apply(ct[i + e], row, column + e));
      }
    }
  }
}
