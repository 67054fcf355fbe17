// Sum of x over the threads before this one, and over all of them. Every thread of the threadgroup calls it.
inline int2 prefix(int2 x, thread int2& total, threadgroup int2* sums, uint simdgroup, uint lane) {
  const int2 inside = int2(simd_prefix_exclusive_sum(x.x), simd_prefix_exclusive_sum(x.y));
  if (lane == 31) {
    sums[simdgroup] = inside + x;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int2 before = 0;
  total = 0;
  for (uint i = 0; i < THREADS / 32; ++i) {
    if (i == simdgroup) {
      before = total;
    }
    total += sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the next call writes sums again
  return before + inside;
}

// Where each bin's rows and tiles begin, one bin per thread and step; base becomes the position of each chunk's first row in
// each bin. counts and base may be the same.
template <typename Counts, typename Base, typename Starts>
void place_bins(Counts counts, Base base, Starts row_start, Starts tile_start, int chunks, int experts, int block_m,
                threadgroup int2* sums, uint simdgroup, uint lane) {
  const long bins = long(experts) + 1;
  int2 placed = 0;  // rows and tiles of the bins of earlier steps
  for (long first = 0; first < bins; first += THREADS) {
    const long bin = first + simdgroup * 32 + lane;
    int rows = 0;
    for (int chunk = 0; bin < bins && chunk < chunks; ++chunk) {
      rows += counts[chunk * bins + bin];
    }
    const int tiles = rows / block_m + (rows % block_m != 0 ? 1 : 0);
    int2 total;
    const int2 start = placed + prefix(int2(rows, tiles), total, sums, simdgroup, lane);
    placed += total;
    if (bin < bins) {
      row_start[bin] = start.x;
      tile_start[bin] = start.y;
      int position = start.x;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const int count = counts[chunk * bins + bin];
        base[chunk * bins + bin] = position;
        position += count;
      }
    }
  }
  if (simdgroup == 0 && lane == 0) {
    row_start[bins] = placed.x;
    tile_start[bins] = placed.y;
  }
}

// Every tile finds its bin: the last that begins at or before it. An empty bin begins where the next one does.
template <typename Starts>
void write_tiles(Starts row_start, Starts tile_start, int tiles, int experts, int block_m, device int* tile_expert,
                 device int* tile_row_start, device int* tile_row_count, uint index) {
  const int end = experts + 1;
  for (long tile = index; tile < tiles; tile += THREADS) {
    int low = 0, high = end;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      const bool right = tile_start[middle] <= tile;
      low = right ? middle : low;
      high = right ? high : middle;
    }
    const bool inert = tile >= tile_start[end];
    const int start = inert ? row_start[end] : row_start[low] + (int(tile) - tile_start[low]) * block_m;
    tile_expert[tile] = inert || low == experts ? -1 : low;
    tile_row_start[tile] = start;
    tile_row_count[tile] = inert ? 0 : min(block_m, row_start[low + 1] - start);
  }
}
