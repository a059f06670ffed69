// C = A * B^T on Hopper, tile by tile in the order that the host gives.
//
// The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first tile
// ends. A tile's gate is awaited before its rows of A are loaded (AllGather), or before it is written into the slots of
// the ranks that sum it (ReduceScatter), where the last tile of a block of rows raises the block's signal. Without either
// this is a plain GEMM.
//
// One block per SM: a loader warp fills a ring of stages with the tensor copy engine, two warpgroups multiply, a storer
// warp for each carries finished pieces away. Who multiplies waits for nobody but these.
//
// Compiled once per variant (variants.toml). Defined: ELEMENT, ENTRY, TILE_M, TILE_N, STAGES, BUFFERS, PIECE_N, SHARED_BYTES, maybe TRACE.

#include "pieces.cuh"
#include "signals.cuh"
#include "trace.cuh"
#include "wgmma.cuh"

using Result = ELEMENT::Result;

struct Config {
  static const int kRowBytes = 128;  // of a stage: the swizzle's span
  static const int kTileM = TILE_M, kTileN = TILE_N, kTileK = kRowBytes / sizeof(ELEMENT::Bits);
  static const int kStages = STAGES;
  static const int kGroups = 2;  // warpgroups that multiply
  static const int kThreads = 128 * (1 + kGroups);
  // A warpgroup's part of the tile: half of the rows, or half of the columns where there are only 64 rows.
  static const bool kSplitsN = kTileM == 64;
  static const int kGroupM = kSplitsN ? 64 : kTileM / kGroups, kGroupN = kSplitsN ? kTileN / kGroups : kTileN;
  static const int kBlocksM = kGroupM / 64;  // of 64 rows, which a warpgroup multiplies at once
  // Whether two blocks may load together: where elements of 8 bits take half as long to multiply, loads bound sooner. Elsewhere
  // nothing is gained, while small tiles feel every instruction more.
  static const bool kPairs = sizeof(ELEMENT::Bits) == 1 && kTileM * kTileN <= 128 * 256;
  static const int kBytesA = kTileM * kRowBytes, kBytesB = kTileN * kRowBytes;
  static const int kStageBytes = kBytesA + kBytesB;
  // A finished tile leaves in pieces of 64 rows, through a few buffers for each warpgroup.
  static const int kPieceN = PIECE_N;
  static const int kPieceBytes = 64 * kPieceN * 2;
  static const int kPiecesN = kGroupN / kPieceN, kPieces = kBlocksM * kPiecesN;
  static const int kPieceSums = kPieceN / 2;  // accumulators of a thread
  static const int kBuffers = BUFFERS;
  static const int kSums = kGroupN / 2;  // accumulators of a thread for each block of 64 rows
  // Whether a tile's first block of K is multiplied by code of its own: the loop is then shorter by a few instructions. With
  // many sums they are nothing beside a multiplication, each copy of which takes the driver long to compile.
  static const bool kPeels = kBlocksM * kSums <= 96;
  // Whether a finished tile can be held in registers, rounded, while the next one is multiplied: beside more sums there is no room, and
  // tiles of fewer are for few rows.
  static const bool kHolds = kBlocksM * kSums > 64 && kBlocksM * kSums <= 128;
  // Whether that goes for tiles with an activation, too: code for each piece, which with 8-bit elements the driver would compile too long.
  static const bool kHoldsActivated = kHolds && sizeof(ELEMENT::Bits) == 2;
  // Registers of a thread that loads or stores, and of one that multiplies: three warpgroups have 504.
  static const int kFewRegisters = kBlocksM * kSums >= 128 ? 40 : 56, kManyRegisters = (504 - kFewRegisters) / 2;
  static_assert(kGroupN % kPieceN == 0 && (kPieceN == 16 || kPieceN == 32 || kPieceN == 64), "pieces cover the columns");
  static_assert(kBlocksM == 1 || kBlocksM == 2, "a tile of half the rows takes one block of each warpgroup");
};
using C = Config;

// Shared memory, from a 1024-byte boundary on.
struct Layout {
  static const u32 kStages = 0;
  static const u32 kPieces = kStages + C::kStages * C::kStageBytes;
  static const u32 kFull = kPieces + C::kGroups * C::kBuffers * C::kPieceBytes;  // barriers: a stage is loaded
  static const u32 kEmpty = kFull + 8 * C::kStages;                             //   a stage has been multiplied
  static const u32 kReady = kEmpty + 8 * C::kStages;                            //   a piece is written
  static const u32 kFree = kReady + 8 * C::kGroups * C::kBuffers;               //   a piece has left
  static const u32 kVectorsReady = kFree + 8 * C::kGroups * C::kBuffers;        //   a tile's vectors are loaded
  static const u32 kVectorsFree = kVectorsReady + 8;                            //   they have been used
  static const u32 kRowScales = kVectorsFree + 8;  // float per row, and per column, where elements have scales
  static const u32 kColumnScales = kRowScales + (ELEMENT::kScaled ? 4 * C::kTileM : 0);
  static const u32 kBias = kColumnScales + (ELEMENT::kScaled ? 4 * C::kTileN : 0);  // result per column
  static const u32 kKept = kBias + 2 * C::kTileN;                 // u32 per piece buffer: whether the tile ends here
  static const u32 kLast = kKept + 4 * C::kGroups * C::kBuffers;  // u32: whether this block's part was the last
  static const u32 kEnd = kLast + 4;
  static_assert(kEnd <= SHARED_BYTES, "dynamic_smem_bytes of variants.toml are too few");
};

DEVICE bool in_pairs(const HopperParams& p) { return C::kPairs && p.sharing != Sharing::none; }

// A warp has done with a stage: so it tells who fills it, which in a pair is either block.
DEVICE void release_stage(const HopperParams& p, u32 shared, u32 place, u32 lane) {
  const u32 barrier = shared + Layout::kEmpty + 8 * place;
  if (lane != 0) return;
  barrier_arrive(barrier);
  if (in_pairs(p)) barrier_arrive_at(barrier, cluster_rank() ^ 1);
}

// The first row in the tile of a warpgroup's piece, if each has so many times 64 rows.
DEVICE u32 first_row_of(u32 piece, u32 blocks, u32 group) {
  return (C::kSplitsN ? 0 : group * blocks * 64) + piece / C::kPiecesN * 64;
}

#include "fold.cuh"

// What a block does next: a tile, or a part of its K.
struct Unit {
  u32 tile;  // index in the order
  u32 part, parts;
  u32 begin, end;  // of the blocks of K
};

// Of a tile. Wide ones always have as many as the kernel multiplies, which it then knows.
DEVICE u32 tile_columns(const HopperParams& p) { return C::kTileN > 128 ? C::kTileN : p.tile_columns; }

DEVICE u32 units(const HopperParams& p) { return p.gemm.tiles + p.split_tiles * (p.parts - 1); }

// The last tiles of the order are split, if any: by part, so that blocks at work together read the same columns of K.
DEVICE Unit unit_at(const HopperParams& p, u32 index) {
  const u32 blocks = (p.gemm.k + C::kTileK - 1) / C::kTileK, whole = p.gemm.tiles - p.split_tiles;
  if (index < whole) return {index, 0, 1, 0, blocks};
  const u32 part = (index - whole) / p.split_tiles, tile = whole + (index - whole) % p.split_tiles;
  return {tile, part, p.parts, blocks * part / p.parts, blocks * (part + 1) / p.parts};
}

DEVICE u32 entry_of(const HopperParams& p, u32 tile) {
  return load_global_4_or(p.gemm.order + 4ull * tile, p.is_row, tile);
}
DEVICE const RowTile& row_tile_of(const HopperParams& p, u32 entry) {
  return ((const RowTile*)p.gemm.row_tiles)[entry >> 16];
}

// The first column of the tile that a warpgroup multiplies.
DEVICE u32 first_column_of(const HopperParams& p, u32 entry, u32 group) {
  return (entry & 0xffff) * tile_columns(p) + (C::kSplitsN ? group * C::kGroupN : 0);
}

// A tile of at most half the rows takes half the time.
DEVICE bool is_half(u32 rows) { return C::kBlocksM == 2 && rows <= C::kTileM / 2; }

// The whole warp agrees: whether the signals of the tile's gate are up.
DEVICE bool open_gate(const GemmParams& p, const RowTile& tile, u32 entry, u32 lane) {
  bool failed = false;
#pragma unroll 1
  for (u32 signal = tile.gate_begin + lane; signal < tile.gate_end && !failed; signal += 32) {
    const u32 peer = tile.peer + (p.destination_count > 0 ? signal - tile.gate_begin : 0);
    failed = !wait_for(p.wait, p.gates + 4ull * signal, p.gate_epoch, peer, entry, signal);
  }
  return !__any_sync(~0u, failed);
}

// Whether both blocks of the pair need the same of an operand.
DEVICE bool is_shared(const HopperParams& p, Sharing what, u32 index, u32 entry) {
  if (!C::kPairs || p.sharing != what) return false;
  const u32 differs = entry ^ entry_of(p, unit_at(p, index ^ 1).tile);
  return (what == Sharing::a ? differs >> 16 : differs & 0xffff) == 0;
}

// Loads a block's half of what both need, for both.
DEVICE void load_half(u32 to, u32 box_rows, const TensorMap* map, u32 x, u32 y, u32 barrier) {
  const u32 rows = (blockIdx.x & 1) * box_rows;
  load_box_to_both(to + rows * C::kRowBytes, map, x, y + rows, barrier);
}

#include "vectors.cuh"

// Fills a stage for each of the unit's blocks of K.
template <typename LoadStage>
DEVICE void fill(const Unit& unit, u32 shared, Ring<C::kStages>& ring, u32 bytes, LoadStage load_stage) {
#pragma unroll (C::kTileM > 64 ? 1 : 4)  // as `#pragma unroll 1` elsewhere: what is compiled once loads sooner
  for (u32 block = unit.begin; block < unit.end; ++block, ring.next()) {
    const u32 stage = shared + Layout::kStages + ring.place * C::kStageBytes, full = shared + Layout::kFull + 8 * ring.place;
    barrier_wait(shared + Layout::kEmpty + 8 * ring.place, ring.lap ^ 1);
    barrier_expect(full, bytes);
    load_stage(stage, stage + C::kBytesA, block * C::kTileK, full);
  }
}

// Fills the stages. A wait that expires ends no block: what was not awaited is multiplied to no purpose, and every other
// wait gives up at once, so the kernel ends in its usual time. Small tiles take hardly longer to multiply than a thread needs
// to ask for their stages: so there is no loop over boxes, and a loop over stages for each way to load one.
DEVICE void load(const HopperParams& p, u32 shared, u32 lane) {
  Ring<C::kStages> ring;
  u32 vectors_lap = 0;
  u32 open_begin = 0, open_end = 0, awaited = ~0u;  // the gate that was opened last, and the slots': signals do not fall
  for (u32 index = blockIdx.x; index < units(p); index += gridDim.x) {
    const Unit unit = unit_at(p, index);
    const u32 entry = entry_of(p, unit.tile);
    const RowTile& tile = row_tile_of(p, entry);
    const u32 row = load_global_4_or((u64)&tile.row, p.is_row, 0);
    const bool half = is_half(load_global_4_or((u64)&tile.rows, p.is_row, p.gemm.m));
    const u32 gate_begin = load_global_4_or((u64)&tile.gate_begin, p.is_row, 0);
    const u32 gate_end = load_global_4_or((u64)&tile.gate_end, p.is_row, 0);
    if (lane == 0) trace_unit(p, index, entry, unit.part, p.gemm.destination_count == 0);
    if (p.gemm.destination_count == 0 && (gate_begin != open_begin || gate_end != open_end)) {
      open_gate(p.gemm, tile, entry, lane);
      open_begin = gate_begin, open_end = gate_end;
      __syncwarp();
      if (lane == 0) fence_global_to_copies();
    }
    if (lane == 0 && p.gemm.destination_count == 0) trace(p, index, kTraceGateEnd);
    if (elect_one()) {
      const u32 column = (entry & 0xffff) * tile_columns(p);
      const bool is_own = row - p.gemm.own_row < p.gemm.own_rows;
      const TensorMap* a = is_own ? &p.own_a : &p.a;
      const u32 a_row = is_own ? row - p.gemm.own_row : row;
      const bool shares_a = is_shared(p, Sharing::a, index, entry), shares_b = is_shared(p, Sharing::b, index, entry);
      const bool two_a = p.a_boxes == 2 && !half;  // rows below are not loaded, nor are their results used
      const u32 bytes = ((two_a ? 2 : 1) * p.a_box_rows + tile_columns(p)) * C::kRowBytes;
      auto load_a = [&](bool two, u32 to, u32 x, u32 full) {
        load_box(to, a, x, a_row, full);
        if (two) load_box(to + p.a_box_rows * C::kRowBytes, a, x, a_row + p.a_box_rows, full);
      };
      if (shares_a) {
        fill(unit, shared, ring, bytes, [&](u32 to_a, u32 to_b, u32 x, u32 full) {
          load_box(to_b, &p.b, x, column, full);
          load_half(to_a, p.a_box_rows, a, x, a_row, full);
        });
      } else if (shares_b) {
        fill(unit, shared, ring, bytes, [&](u32 to_a, u32 to_b, u32 x, u32 full) {
          load_half(to_b, p.b_box_rows, &p.b, x, column, full);
          load_a(C::kTileM > 128 && two_a, to_a, x, full);
        });
      } else if (in_pairs(p)) {  // which this time have nothing in common
        fill(unit, shared, ring, bytes, [&](u32 to_a, u32 to_b, u32 x, u32 full) {
          load_box(to_b, &p.b, x, column, full);
          if (p.b_boxes == 2) load_box(to_b + p.b_box_rows * C::kRowBytes, &p.b, x, column + p.b_box_rows, full);
          load_a(two_a, to_a, x, full);
        });
      } else {
        fill(unit, shared, ring, bytes, [&](u32 to_a, u32 to_b, u32 x, u32 full) {
          load_box(to_b, &p.b, x, column, full);
          load_a(C::kTileM > 128 && two_a, to_a, x, full);
        });
      }
    }
    __syncwarp();
    const bool folded = is_folded(p.gemm, tile);
    if (takes_vectors(p, unit, folded)) {
      load_vectors(p, bias_of(p, folded), row, (entry & 0xffff) * tile_columns(p), shared, vectors_lap, lane);
      vectors_lap ^= 1;
    }
    if (folded) {
      if (lane == 0) trace(p, index, kTraceGateBegin);
      const u32 signal = tile.signal;
      if (signal != awaited) {
        await_slots(p.gemm, tile, entry, lane);
        awaited = signal;
        if (lane == 0) fence_global_to_copies();
      }
      if (elect_one()) {
        trace(p, index, kTraceGateEnd);
        load_slots(p, tile, (entry & 0xffff) * tile_columns(p), half ? 1 : C::kBlocksM, shared, ring);
      }
      __syncwarp();
    }
  }
}

using Sums = float[C::kBlocksM][C::kSums];

#include "hand_over.cuh"

// Begins to multiply a stage's block of K, for 64 rows of the warpgroup.
DEVICE void multiply_block(float (&sums)[C::kSums], u32 a, u32 b, bool keep) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kRowBytes / 32; ++step) {
    const u64 a_tile = tile_descriptor(a + 2 * step), b_tile = tile_descriptor(b + 2 * step);
    Wgmma<ELEMENT, C::kGroupN>::multiply(sums, a_tile, b_tile, step > 0 || keep);
  }
  wgmma_commit();
}

// Multiplies a unit's blocks of K, for so many times 64 rows of each warpgroup, while the tile before leaves, if it is held. The last
// block runs on: returns its stage's place.
DEVICE u32 multiply(const HopperParams& p, Sums& sums, const Unit& unit, u32 blocks, u32 shared, Ring<C::kStages>& ring,
                    Held& held, Giver& giver) {
  const u32 group = giver.group;
  const u32 stages = shared + Layout::kStages;
  const u32 first_a = (stages + (C::kSplitsN ? 0 : group * blocks * 64 * 128)) / 16;
  const u32 first_b = (stages + C::kBytesA + (C::kSplitsN ? group * C::kGroupN * 128 : 0)) / 16;
  auto multiply_stage = [&](bool keep) {  // then the stage before is done; this one runs on
    barrier_wait(shared + Layout::kFull + 8 * ring.place, ring.lap);
    // The same in all lanes, and known to be so: the descriptors then stay in uniform registers.
    const u32 a = __shfl_sync(~0u, first_a + ring.place * (C::kStageBytes / 16), 0);
    const u32 b = __shfl_sync(~0u, first_b + ring.place * (C::kStageBytes / 16), 0);
    multiply_block(sums[0], a, b, keep);
    if (C::kBlocksM == 2 && blocks == 2) {
      multiply_block(sums[C::kBlocksM - 1], a + 64 * 128 / 16, b, keep);
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
  };
  u32 block = unit.begin, previous = ring.place;
  auto multiply_next = [&](bool keep) {
    multiply_stage(keep);
    if (keep) release_stage(p, shared, previous, giver.lane);
    previous = ring.place;
    ring.next();
    ++block;
  };
  if (C::kHolds && held.pieces > 0) {
    // A loop of its own: in one for all blocks, what is held would be moved from register to register each time.
#pragma unroll 1
    do {
      multiply_next(block != unit.begin);
      held.give_piece(p, giver);
    } while (held.pieces > 0);
  } else if (C::kPeels) {
    multiply_next(false);
  }
#pragma unroll 1
  while (block < unit.end) multiply_next(C::kPeels || block != unit.begin);
  return previous;
}

// Waits until what `multiply` began has been multiplied.
DEVICE void end_multiply(const HopperParams& p, Sums& sums, u32 shared, u32 place, u32 lane) {
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < C::kBlocksM; ++i) pin(sums[i]);
  release_stage(p, shared, place, lane);
}

DEVICE void consume(const HopperParams& p, u32 shared, u32 group, u32 thread) {
  Ring<C::kStages> stages;
  Ring<C::kBuffers> pieces;
  u32 vectors_lap = 0;
  // Zeros that no tile needs. But where a tile's first multiplication overwrites what was never written, older assemblers take
  // it for a hazard, and let none of them run beside another.
  Sums sums = {};
  Held held;
  for (u32 index = blockIdx.x; index < units(p); index += gridDim.x) {
    const Unit unit = unit_at(p, index);
    const u32 blocks = C::kBlocksM == 2 && is_half(row_tile_of(p, entry_of(p, unit.tile)).rows) ? 1 : C::kBlocksM;
#ifdef TRACE
    barrier_wait(shared + Layout::kFull + 8 * stages.place, stages.lap);  // `multiply` then finds it open
#endif
    if (thread == 0) trace(p, index, kTraceFirstStage + group);
    Giver giver{pieces, shared, group, thread / 32, thread % 32};
    const u32 last = multiply(p, sums, unit, blocks, shared, stages, held, giver);
    // What becomes of the tile is looked up meanwhile.
    const Unit of_sums = unit_at(p, afresh(index));
    const bool folded = is_folded(p.gemm, row_tile_of(p, entry_of(p, of_sums.tile)));
    const bool plain = is_plain(p, of_sums, folded);
    end_multiply(p, sums, shared, last, thread % 32);
    if (thread == 0) trace(p, index, kTraceMultiplied + group);
    const bool takes = takes_vectors(p, of_sums, folded);
    if (takes) barrier_wait(shared + Layout::kVectorsReady, vectors_lap);
    const u32 next = index + gridDim.x;
    held.forget();
    if (plain) finish_plain(p, of_sums, sums, blocks, held, giver);
    else finish(p, of_sums, sums, blocks, folded, stages, giver);
    if (next >= units(p) || !has_time_for_pieces(unit_at(p, next))) held.give(p, giver);
    if (takes) {
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(shared + Layout::kVectorsFree);
      vectors_lap ^= 1;
    }
    if (thread == 0) trace(p, index, kTraceHandedOver + group);
  }
}

#include "store.cuh"

extern "C" __global__ void __launch_bounds__(C::kThreads, 1) ENTRY(const __grid_constant__ Traced<HopperParams> p) {
  extern __shared__ __align__(1024) u8 bytes[];
  const u32 shared = shared_address(bytes);
  const u32 group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_map(&p.a);
    prefetch_map(&p.b);
    prefetch_map(&p.c);
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(shared + Layout::kFull + 8 * i, 1);
      barrier_init(shared + Layout::kEmpty + 8 * i, 4 * C::kGroups * (in_pairs(p) ? 2 : 1));
    }
    for (int i = 0; i < C::kGroups * C::kBuffers; ++i) {
      barrier_init(shared + Layout::kReady + 8 * i, 4);
      barrier_init(shared + Layout::kFree + 8 * i, 1);
    }
    barrier_init(shared + Layout::kVectorsReady, kVectorsArrivals);
    barrier_init(shared + Layout::kVectorsFree, 4 * C::kGroups);
    barrier_init_fence();
  }
  if (in_pairs(p)) cluster_barrier();
  else __syncthreads();
  if (p.lets_next_begin) let_next_begin();
  wait_for_previous();
  if (group == 0) {
    give_registers<C::kFewRegisters>();
    if (warp == 0) load(p, shared, lane);
    else if (warp <= C::kGroups) store(p, shared, warp - 1, lane);
  } else {
    take_registers<C::kManyRegisters>();
    // Known to be the same in all lanes, what follows from it is computed once for all: 0.5 % faster where elements have 8 bits, up to
    // 0.9 % slower elsewhere.
    const u32 multiplier = ELEMENT::kScaled ? __shfl_sync(~0u, group - 1, 0) : group - 1;
    consume(p, shared, multiplier, threadIdx.x % 128);
  }
  if (in_pairs(p)) cluster_barrier();  // the other block may still write here
}
