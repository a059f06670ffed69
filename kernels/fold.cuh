// The sum of a ReduceScatter, folded into the epilogue of the tiles that this rank itself sums: no separate kernel, and its
// own partial sums never leave the SM. The other sources' slots come through the ring of stages, behind the tile's blocks of
// K, as if they were more of these: the loader alone waits for their signals, and loads ahead of who adds them.
//
// A stage holds, of some parts of the tile, all other sources' boxes. A part is half a piece: the rows of two warps. A box is
// swizzled as a piece is, so what belongs together lies at the same place in both.
//
// Of gemm_hopper.cu, behind its Result, Config and Layout.
#pragma once

#include "pieces.cuh"
#include "signals.cuh"
#include "sum.cuh"

static const u32 kPartRows = 32;
static const u32 kPartBytes = kPartRows * C::kPieceN * 2;

// Whether the tile's sum is finished here. Such a tile has no destination but C, nor does anybody wait for it.
DEVICE bool is_folded(const GemmParams& p, const RowTile& tile) {
  return p.fold.sources > 0 && tile.destination == p.fold.own;
}

// Parts of a tile of so many blocks of 64 rows for each warpgroup: [piece][warpgroup][half].
DEVICE u32 parts_of(u32 blocks) { return blocks * C::kPiecesN * C::kGroups * 2; }

// The whole warp: waits until the other sources' tiles of this block of rows are in their slots, or a wait has expired.
DEVICE void await_slots(const GemmParams& p, const RowTile& tile, u32 entry, u32 lane) {
#pragma unroll 1
  for (u32 source = lane; source < p.fold.sources; source += 32) {
    const u32 signal = source * p.fold.source_stride + tile.signal;
    if (source != p.fold.own) wait_for(p.wait, p.gates + 4ull * signal, p.fold.epoch, source, entry, signal);
  }
  __syncwarp();
}

// One thread: loads the slots of a tile of so many blocks of 64 rows for each warpgroup, which begins in that column.
DEVICE void load_slots(const HopperParams& p, const RowTile& tile, u32 first_column, u32 blocks, u32 shared,
                       Ring<C::kStages>& ring) {
  const FoldParams& fold = p.gemm.fold;
  const u32 parts = parts_of(blocks);
  u32 part = 0;
#pragma unroll 1
  while (part < parts) {
    const u32 end = min(parts, part + p.slot_parts), full = shared + Layout::kFull + 8 * ring.place;
    u32 to = shared + Layout::kStages + ring.place * C::kStageBytes;
    barrier_wait(shared + Layout::kEmpty + 8 * ring.place, ring.lap ^ 1);
    barrier_expect(full, (end - part) * (fold.sources - 1) * kPartBytes);
#pragma unroll 1
    for (; part < end; ++part) {
      const u32 half = part % 2, group = part / 2 % C::kGroups, piece = part / 2 / C::kGroups;
      const u32 x = first_column + (C::kSplitsN ? group * C::kGroupN : 0) + piece % C::kPiecesN * C::kPieceN;
      u32 y = tile.destination_row + (C::kSplitsN ? 0 : group * blocks * 64) + piece / C::kPiecesN * 64 + half * kPartRows;
#pragma unroll 1
      for (u32 source = 0; source < fold.sources; ++source, y += fold.slot_rows) {
        if (source == fold.own) continue;
        load_box(to, &p.slots, x, y, full);
        to += kPartBytes;
      }
    }
    ring.next();
  }
}

// A warp's walk over the stages that `load_slots` fills. Every warp releases every stage, also those with nothing for it.
struct SlotStages {
  const HopperParams& p;
  Ring<C::kStages>& ring;
  u32 shared, lane;
  u32 first = 0;  // part of the stage that the ring is at

  __device__ __forceinline__ void await() { barrier_wait(shared + Layout::kFull + 8 * ring.place, ring.lap); }
  // Not before it is full: a warp that ran ahead of the others by a lap would be counted in their stead.
  __device__ __forceinline__ void leave() {
    await();
    __syncwarp();
    release_stage(p, shared, ring.place, lane);
    ring.next();
    first += p.slot_parts;
  }
};

// Adds the slots to what the warp's lanes have laid out of a piece, and the bias; `column` is the piece's first one.
DEVICE void add_slots(const HopperParams& p, SlotStages& stages, u32 part, u32 piece, u32 column, u32 warp) {
  const FoldParams& fold = p.gemm.fold;
  while (part >= stages.first + p.slot_parts) stages.leave();
  stages.await();
  const u32 slots = stages.shared + Layout::kStages + stages.ring.place * C::kStageBytes +
                    (part - stages.first) * (fold.sources - 1) * kPartBytes;
  const u32 kChunks = C::kPieceN / 8, chunk = stages.lane % kChunks;
  float bias[8];
  load_bias<Result>(bias, fold.bias, column + 8 * chunk, p.gemm.n);
  __syncwarp();  // a row's chunks were laid out by several lanes
#pragma unroll 1
  for (u32 step = 0; step < kChunks / 2; ++step) {  // 16 rows, in as many steps for every lane
    const u32 row = 16 * warp + step * (32 / kChunks) + stages.lane / kChunks;
    const u32 own = piece + piece_place<C::kPieceN>(row, chunk);
    u32 other = slots + piece_place<C::kPieceN>(row % kPartRows, chunk);
    float sums[8] = {};
    u32 v[4];
#pragma unroll 2
    for (u32 source = 0; source < fold.sources; ++source) {
      const bool is_own = source == fold.own;
      load_shared_16(v, is_own ? own : other);
      other += is_own ? 0 : kPartBytes;
      add_chunk<Result>(sums, v);
    }
    finish_chunk<Result>(v, sums, bias);
    store_shared_16(own, v);
  }
}
