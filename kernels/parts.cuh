// The parts of a tile that is split along K: how they become one.
//
// All parts of a split tile are added in the order of K by whoever brings the last one: nobody waits, and the bits do not
// depend on who it is.
//
// Of gemm_hopper.cu, behind its Unit and Sums.
#pragma once

// Where a thread's sums of a piece of the first part are; those of the next parts are kPartSums apart.
// float [split tile][warpgroup][part][piece][register][thread]
static const u32 kPartSums = C::kPieces * C::kPieceSums * 128;
DEVICE float* first_part_of(const HopperParams& p, const Unit& unit, u32 piece, u32 group, u32 thread) {
  const u32 split_tile = unit.tile - (p.gemm.tiles - p.split_tiles);
  const u64 parts = (u64)(split_tile * C::kGroups + group) * unit.parts;
  return (float*)p.partials + parts * kPartSums + piece * (C::kPieceSums * 128) + thread;
}

// Whether the tile has rows where the thread's warp has sums of a piece: others need not be exchanged.
DEVICE bool has_rows(const HopperParams& p, const Unit& unit, u32 piece, u32 blocks, u32 group, u32 thread) {
  return first_row_of(piece, blocks, group) + thread / 32 * 16 < row_tile_of(p, entry_of(p, unit.tile)).rows;
}

// Leaves a piece of a part in memory.
DEVICE void leave_piece(const HopperParams& p, const Unit& unit, const float* sums, u32 piece, u32 blocks, u32 group,
                        u32 thread) {
  if (!has_rows(p, unit, piece, blocks, group, thread)) return;
  float* to = first_part_of(p, unit, piece, group, thread) + unit.part * kPartSums;
#pragma unroll
  for (int j = 0; j < C::kPieceSums; ++j) to[128 * j] = sums[j];
}

// The whole block has left its part in memory: whether it was the last one.
DEVICE bool is_last_part(const HopperParams& p, const Unit& unit, u32 shared, u32 group, u32 thread) {
  named_barrier<1, 128 * C::kGroups>();
  if (thread == 0 && group == 0) {
    __threadfence();  // the block's part, seen through the barrier, comes before the count
    // The count returns to 0 with the last part: ready for the next launch.
    const u32 split_tile = unit.tile - (p.gemm.tiles - p.split_tiles);
    const u32 before = increment_around(p.arrivals + 4ull * split_tile, unit.parts - 1);
    store_shared_4(shared + Layout::kLast, before == unit.parts - 1);
    __threadfence();
  }
  named_barrier<1, 128 * C::kGroups>();
  const bool is_last = load_shared_4(shared + Layout::kLast) != 0;
  named_barrier<1, 128 * C::kGroups>();  // the word may be written again
  return is_last;
}

// Sums a piece of all parts.
DEVICE void sum_piece(const HopperParams& p, const Unit& unit, float* sums, u32 piece, u32 blocks, u32 group, u32 thread) {
  if (!has_rows(p, unit, piece, blocks, group, thread)) return;
  const float* from = first_part_of(p, unit, piece, group, thread);
#pragma unroll
  for (int j = 0; j < C::kPieceSums; ++j) sums[j] = 0;
#pragma unroll 1
  for (u32 part = 0; part < unit.parts; ++part, from += kPartSums) {
#pragma unroll
    for (int j = 0; j < C::kPieceSums; ++j) sums[j] += load_written_by_blocks(from + 128 * j);
  }
}
