// How pieces leave shared memory: a warp for each of the two warpgroups carries them away.
//
// Of gemm_hopper.cu, behind its Unit.
#pragma once

#include "pieces.cuh"
#include "signals.cuh"
#include "trace.cuh"

// What is behind the tile's last column.
DEVICE u32 end_of(const HopperParams& p, u32 entry) {
  const bool may_be_narrowed = C::kTileN <= 128;
  return may_be_narrowed ? min(p.gemm.n, ((entry & 0xffff) + 1) * tile_columns(p)) : p.gemm.n;
}

// Carries a warpgroup's pieces away: to C, or to this rank's slots at the tile's destinations. Folded tiles go to C.
DEVICE void store(const HopperParams& p, u32 shared, u32 of_group, u32 lane) {
  // A piece's buffer is free when so many more are on their way: one fewer than there are buffers, and who multiplies finds one free.
  const int kLag = C::kBuffers > 2 ? C::kBuffers - 2 : C::kBuffers - 1;
  Ring<C::kBuffers> ring;
  bool dead = false;  // a wait has expired: what would be overwritten may still be in use
  const bool scatters = p.gemm.destination_count > 0;
  const bool of_pairs = makes_pairs(p.gemm);
  for (u32 index = blockIdx.x; index < units(p); index += blocks_afresh()) {
    const u32 of_entry = entry_of(p, unit_at(p, index).tile);
    const RowTile& tile = row_tile_of(p, of_entry);  // looked up again where it is needed: registers are few
    const u32 blocks = is_half(tile.rows) ? 1 : C::kBlocksM;
    const bool to_slots = scatters && !is_folded(p.gemm, tile);
    if (to_slots && lane == 0 && of_group == 0) trace(p, index, kTraceGateBegin);
    if (to_slots) dead = dead || !open_gate(p.gemm, tile, of_entry, lane);
    if (to_slots && lane == 0 && of_group == 0) trace(p, index, kTraceGateEnd);
    bool kept = true;
    u32 issued = 0;
    for (; issued < blocks * C::kPiecesN && kept; ++issued) {
      const u32 group = afresh(of_group), entry = afresh(of_entry), buffer = group * C::kBuffers + ring.place;
      barrier_wait(shared + Layout::kReady + 8 * buffer, ring.lap);
      ring.next();
      kept = load_shared_4(shared + Layout::kKept + 4 * buffer) != 0;
      const u32 from = shared + Layout::kPieces + buffer * C::kPieceBytes;
      const u32 row = first_row_of(issued, blocks, group);
      const u32 column = first_column_of(p, entry, group) + issued % C::kPiecesN * C::kPieceN;
      if (kept && !(to_slots && dead) && row < tile.rows && column < end_of(p, entry)) {
        // Not `scatters ? .. : ..`: the compiler would keep the addresses of both.
        const u32 to_row = row + load_global_4_or((u64)&tile.row, scatters, 0) +
                           load_global_4_or((u64)&tile.destination_row, !scatters, 0);
        if (!to_slots && (p.by_rows || row + 64 > tile.rows)) {
          const u32 rows = min(64u, tile.rows - row);
          const u64 pitch = scatters ? p.gemm.fold.ld_out : p.gemm.ldc;
          const u32 end = end_of(p, entry);
          if (of_pairs) store_rows<C::kPieceN / 2>(p.gemm, pitch, from, to_row, rows, column / 2, end / 2, lane);
          else store_rows<C::kPieceN>(p.gemm, pitch, from, to_row, rows, column, end, lane);
          __syncwarp();
        } else if (elect_one()) {
          if (to_slots) {  // rows behind the tile's end are the slot's own, or clipped
            const TensorMap* maps = (const TensorMap*)p.destination_maps + tile.destination;
#pragma unroll 1
            for (u32 i = 0; i < p.gemm.destination_count; ++i) store_box(maps + i, from, column, to_row);
          } else {
            store_box(&p.c, from, of_pairs ? column / 2 : column, to_row);
          }
        }
      }
      if (elect_one()) {
        store_box_commit();  // groups are counted, empty ones too
        if ((int)issued >= kLag) {
          store_box_wait_read<kLag>();
          // The buffer of the piece that came kLag before.
          const u32 place = (ring.place + C::kBuffers - 1 - kLag) % C::kBuffers;
          barrier_arrive(shared + Layout::kFree + 8 * (group * C::kBuffers + place));
        }
      }
    }
    if (elect_one()) {
      store_box_wait_read<0>();
#pragma unroll 1
      for (u32 i = min(issued, (u32)kLag); i > 0; --i) {
        const u32 place = (ring.place + C::kBuffers - i) % C::kBuffers;
        barrier_arrive(shared + Layout::kFree + 8 * (of_group * C::kBuffers + place));
      }
    }
    if (to_slots) {
      // The tile is there when both storers' pieces are.
      if (elect_one()) store_box_wait(), fence_system();
      if (lane == 0) trace(p, index, kTraceStored + of_group);
      dead = named_barrier_or<2, 32 * C::kGroups>(dead);
      if (kept && !dead && lane == 0 && of_group == 0 && count_tile(p.gemm, tile)) trace(p, index, kTraceSignal);
    }
    if (!to_slots && lane == 0) trace(p, index, kTraceStored + of_group);
    __syncwarp();
  }
  if (elect_one()) store_box_wait();
}
