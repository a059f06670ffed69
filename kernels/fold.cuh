// The sum of a ReduceScatter, folded into the epilogue of the tiles that this rank itself sums: no separate kernel, and its
// own partial sums never leave the SM. The other sources' slots come through the ring of stages, behind the tile's blocks of
// K, as if they were more of these: the loader alone waits for their signals, and loads ahead of who adds them.
//
// A stage holds, of a part of the tile, or of one for each warpgroup, all other sources' boxes. A part is a piece, or half of one
// where a stage has no room for so many sources. A box is swizzled as a piece is (piece_place).
//
// Of gemm_hopper.cu, behind its Result, Config and Layout.
#pragma once

#include "pieces.cuh"
#include "signals.cuh"
#include "sum.cuh"

// Whether the tile's sum is finished here. Such a tile has no destination but C, nor does anybody wait for it.
DEVICE bool is_folded(const GemmParams& p, const RowTile& tile) {
  return p.fold.sources > 0 && tile.destination == p.fold.own;
}

// What a part has of a source, and of all others.
DEVICE u32 box_bytes(const HopperParams& p) { return C::kPieceN * 2 << p.part_shift; }
DEVICE u32 part_bytes(const HopperParams& p) { return (p.gemm.fold.sources - 1) * box_bytes(p); }

// Parts of a tile of so many blocks of 64 rows for each warpgroup: [piece][warpgroup][half, if it has halves].
DEVICE u32 parts_of(const HopperParams& p, u32 blocks) { return blocks * C::kPiecesN * C::kGroups * 64 >> p.part_shift; }

// The whole warp: waits until the other sources' tiles of this block of rows are in their slots, or a wait has expired.
DEVICE void await_slots(const GemmParams& p, const RowTile& tile, u32 entry, u32 lane) {
#pragma unroll 1
  for (u32 source = lane; source < p.fold.sources; source += 32) {
    const u32 signal = source * p.fold.source_stride + tile.signal;
    if (source != p.fold.own) wait_for(p.wait, p.gates + 4ull * signal, p.fold.epoch, source, entry, signal);
  }
  __syncwarp();
}

// One thread: loads the slots of a tile of so many blocks of 64 rows for each warpgroup, which begins in that column. Few
// instructions for each part: it is alone, and all others wait for it.
DEVICE void load_slots(const HopperParams& p, const RowTile& tile, u32 first_column, u32 blocks, u32 shared,
                       Ring<C::kStages>& ring) {
  const FoldParams& fold = p.gemm.fold;
  const u32 first_row = tile.destination_row;
  u32 parts = parts_of(p, blocks), of_stage = 0, to = 0;
#pragma unroll 1
  for (u32 piece = 0; piece < blocks * C::kPiecesN; ++piece) {
#pragma unroll 1
    for (u32 group = 0; group < C::kGroups; ++group) {
#pragma unroll 1
      for (u32 row = 0; row < 64; row += 1 << p.part_shift) {
        const u32 full = shared + Layout::kFull + 8 * ring.place;
        if (of_stage == 0) {
          of_stage = min(parts, p.slot_parts), parts -= of_stage;
          to = shared + Layout::kStages + ring.place * C::kStageBytes;
          barrier_wait(shared + Layout::kEmpty + 8 * ring.place, ring.lap ^ 1);
          barrier_expect(full, of_stage * part_bytes(p));
        }
        const u32 x = first_column + (C::kSplitsN ? group * C::kGroupN : 0) + piece % C::kPiecesN * C::kPieceN;
        const u32 y = first_row + first_row_of(piece, blocks, group) + row;
        if (fold.own > 0) load_layers(to, &p.slots[0], x, y, full);
        if (fold.own + 1 < fold.sources) load_layers(to + fold.own * box_bytes(p), &p.slots[1], x, y, full);
        to += part_bytes(p);
        if (--of_stage == 0) ring.next();
      }
    }
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

// Sums a piece in the order of the sources: its own sums, rounded as if they came from a slot, and the other ones' slots, each
// thread where its sums are.
DEVICE void add_slots(const HopperParams& p, SlotStages& stages, u32 piece, float* d, u32 group, u32 warp) {
  const FoldParams& fold = p.gemm.fold;
  // The same in all lanes, and known to be so: else the compiler would keep the ring's place for each lane, and the loop that
  // multiplies would have to agree on it for each stage.
  const u32 part = __shfl_sync(~0u, (piece * C::kGroups + group) * 64 + 16 * warp >> p.part_shift, 0);
  while (part >= stages.first + p.slot_parts) stages.leave();
  stages.await();
  const u32 box = stages.shared + Layout::kStages + stages.ring.place * C::kStageBytes +
                  (part - stages.first) * part_bytes(p);
  // Where the thread's first pair of columns is. Boxes are aligned to the swizzle: the places of a row's other chunks differ by some
  // bits, and eight rows further down they are the same.
  static_assert(32 * C::kPieceN * 2 % 1024 == 0, "half a piece begins where the swizzle does");
  const u32 row = (16 * warp & (1 << p.part_shift) - 1) + stages.lane / 4;
  const u32 first_place = box + piece_place<C::kPieceN>(row, 0) + 4 * (stages.lane % 4);
  const int kPairs = C::kPieceN / 4, kAtOnce = kPairs < 8 ? kPairs : 8;  // there are no registers for more
#pragma unroll
  for (int first = 0; first < kPairs; first += kAtOnce) {
    float* sums = d + 2 * first;
    u32 own[kAtOnce], place = first_place;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i] = Result::round_pair(sums[2 * i], sums[2 * i + 1]);
    auto add = [&](u32 source, bool is_first) {
      u32 v[kAtOnce];  // all on their way before the first is added
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = own[i];
      if (source != fold.own) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) v[i] = load_shared_4((place ^ (first + i) / 2 * 16) + i % 2 * 16 * C::kPieceN);
        place += box_bytes(p);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) add_pair<Result>(sums + 2 * i, v[i], is_first);
    };
    add(0, true);
#pragma unroll 1
    for (u32 source = 1; source < fold.sources; ++source) add(source, false);
  }
}
