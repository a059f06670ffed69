// The parts of a tile that is split along K: how they become one.
//
// Of gemm_hopper.cu, behind its Unit and Sums.
#pragma once

// All parts of a split tile are added in the order of K by whoever brings the last one: nobody waits, and the bits do not
// depend on who it is. Returns whether this block has the whole sum now.
template <int kBlocks>
DEVICE bool gather_parts(const HopperParams& p, const Unit& unit, Sums& sums, u32 shared, u32 group, u32 thread) {
  const u32 split_tile = unit.tile - (p.gemm.tiles - p.split_tiles);
  // Rows that the tile does not have need no sums.
  const u32 rows = row_tile_of(p, entry_of(p, unit.tile)).rows;
  const u32 first_row = (C::kSplitsN ? 0 : group * kBlocks * 64) + thread / 32 * 16;
  // float [split tile][warpgroup][part][block of 64 rows][register][thread]
  const u32 kBlockSums = C::kSums * 128, kPartSums = C::kBlocksM * kBlockSums;
  float* partials = (float*)p.partials + (u64)(split_tile * C::kGroups + group) * unit.parts * kPartSums + thread;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    if (first_row + 64 * i >= rows) continue;
    float* own = partials + unit.part * kPartSums + i * kBlockSums;
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) own[128 * j] = sums[i][j];
  }
  named_barrier<1, 128 * C::kGroups>();
  if (thread == 0 && group == 0) {
    __threadfence();  // the block's part, seen through the barrier, comes before the count
    // The count returns to 0 with the last part: ready for the next launch.
    const u32 before = increment_around(p.arrivals + 4ull * split_tile, unit.parts - 1);
    store_shared_4(shared + Layout::kLast, before == unit.parts - 1);
    __threadfence();
  }
  named_barrier<1, 128 * C::kGroups>();
  const bool is_last = load_shared_4(shared + Layout::kLast) != 0;
  named_barrier<1, 128 * C::kGroups>();  // the word may be written again
  if (!is_last) return false;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    if (first_row + 64 * i >= rows) continue;
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] = 0;
#pragma unroll 1
    for (u32 part = 0; part < unit.parts; ++part) {
      const float* from = partials + part * kPartSums + i * kBlockSums;
#pragma unroll
      for (int j = 0; j < C::kSums; ++j) sums[i][j] += load_written_by_blocks(from + 128 * j);
    }
  }
  return true;
}
