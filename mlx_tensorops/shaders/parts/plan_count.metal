constant constexpr uint NO_BIN = 0xffffffff;

// Of rows begin .. end - 1: how many rows before it have the same bin (rank), and how many rows each bin has (counts). A step takes
// THREADS rows; each thread compares its own with all of them, so that ranks follow the order of rows and nothing else.
template <typename Counts>
void count_rows(const device Id* ids, long ids_step, long begin, long end, int experts, device int* rank, Counts counts,
                threadgroup uint4* bins, uint index) {
  for (long bin = index; bin <= experts; bin += THREADS) {
    counts[bin] = 0;
  }
  for (long first = begin; first < end; first += THREADS) {
    const long row = first + index;
    const uint bin = row < end ? bin_of(ids[row * ids_step], experts) : NO_BIN;
    ((threadgroup uint*)bins)[index] = bin;
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    int4 same = 0, before = 0;
    for (uint i = 0; i < THREADS / 4; ++i) {
      const bool4 equal = bins[i] == uint4(bin);
      const bool4 earlier = uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3) < uint4(index);
      same += int4(equal);
      before += int4(equal & earlier);
    }
    const int all = same.x + same.y + same.z + same.w, mine = before.x + before.y + before.z + before.w;
    if (row < end) {
      rank[row] = counts[bin] + mine;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (row < end && mine + 1 == all) {  // the last row of its bin in this step
      counts[bin] += all;
    }
  }
}
