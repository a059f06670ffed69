// C = A * B^T on any GPU from sm_80 on, tile by tile in the order that the host gives.
//
// The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first tile
// ends. Three policies of one kernel:
//   plain  waits for nothing, writes C;
//   ag     AllGather: loads a tile's rows of A when the signals of the chunks that they touch are up;
//   rs     ReduceScatter: writes a tile into this rank's slot at the rows' owner, or at several ranks, which then all
//          sum the same rows (AllReduce). The last tile of a block of rows raises the block's signal there.
//
// Compiled once per variant (variants.toml) with these defined: ELEMENT, POLICY, LOAD, ENTRY, TILE_M, TILE_N, TILE_K,
// WARPS_M, WARPS_N, STAGES, MIN_BLOCKS; in traced ones (trace.cuh) also TRACE, in those that put (puts.cuh) PUTS.

#include "epilogue.cuh"
#include "puts.cuh"
#include "trace.cuh"

enum Policy { plain, ag, rs };
enum Load { vector, scalar };

struct Config {
  static const int kTileM = TILE_M, kTileN = TILE_N, kTileK = TILE_K;
  static const int kWarpsM = WARPS_M, kWarpsN = WARPS_N, kThreads = 32 * WARPS_M * WARPS_N;
  static const int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static const int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static const int kStages = STAGES;
  static const int kRowBytes = kTileK * sizeof(ELEMENT::Bits);  // of a stage
  static const int kChunks = kRowBytes / 16, kInChunk = 16 / sizeof(ELEMENT::Bits);  // of 16 bytes, and elements in each
  static const int kBytesA = kTileM * kRowBytes, kBytesB = kTileN * kRowBytes;
  static const int kStageBytes = kBytesA + kBytesB;
  // The finished tile in shared memory: 16 bytes of padding turn the rows' columns into different banks.
  static const int kOutPitch = kTileN * 2 + 16;
  static const int kOutChunks = kTileN / 8;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "a warp multiplies blocks of 16x16");
  static_assert(kRowBytes == 64 || kRowBytes == 128, "the swizzle is made for rows of 64 or 128 bytes");
  static_assert(kTileM * kOutPitch <= kStages * kStageBytes, "the finished tile reuses the stages' memory");
  static_assert(kThreads % kOutChunks == 0 && kThreads % kChunks == 0, "threads go over rows in step");
};
using C = Config;
using Bits = ELEMENT::Bits;
using Result = ELEMENT::Result;

struct Fragments {
  u32 a[C::kFragmentsM][4];
  u32 b[C::kFragmentsN / 2][4];
};

// Where a 16-byte chunk of a stage's row lies: eight rows of a column of chunks never share a bank.
DEVICE u32 swizzled(int row, int chunk) {
  int turn = C::kRowBytes == 64 ? (row >> 1) & 3 : row & 7;
  return (u32)(row * C::kRowBytes + ((chunk ^ turn) << 4));
}

// Loads `kRows` rows of a k-block to shared memory; rows from `rows` on, and columns from `k` on, become zeros.
template <int kRows>
DEVICE void load_block(u32 to, const Bits* from, u64 pitch, u32 rows, u32 k, u32 first_k) {
  const int chunk = (int)threadIdx.x % C::kChunks;
  const u32 column = first_k + C::kInChunk * chunk;
#pragma unroll (LOAD == vector ? kRows * C::kChunks / C::kThreads : 1)  // the scalar way needs the registers
  for (int i = 0; i < kRows * C::kChunks / C::kThreads; ++i) {
    const int row = (int)threadIdx.x / C::kChunks + i * (C::kThreads / C::kChunks);
    const u32 place = to + swizzled(row, chunk);
    const bool valid = (u32)row < rows && column < k;
    const Bits* source = from + (valid ? (u64)row * pitch + column : 0);
    if (LOAD == vector) {
      copy_async_16(place, source, valid);
    } else {
      const int kInWord = C::kInChunk / 4;
      u32 v[4];
#pragma unroll
      for (int j = 0; j < C::kInChunk; ++j) {
        const u32 bits = valid && column + j < k ? load_global(source + j) : 0;
        v[j / kInWord] = j % kInWord == 0 ? bits : bits << (32 / kInWord * (j % kInWord)) | v[j / kInWord];
      }
      store_shared_16(place, v);
    }
  }
}

DEVICE void load_fragments(Fragments& f, u32 stage, int step, int warp_m, int warp_n, int lane) {
#pragma unroll
  for (int i = 0; i < C::kFragmentsM; ++i) {
    const int row = warp_m * C::kWarpM + 16 * i + (lane & 15);
    load_matrices(f.a[i], stage + swizzled(row, 2 * step + (lane >> 4)));
  }
#pragma unroll
  for (int j = 0; j < C::kFragmentsN / 2; ++j) {
    const int row = warp_n * C::kWarpN + 16 * j + (lane & 7) + ((lane >> 4) << 3);
    load_matrices(f.b[j], stage + C::kBytesA + swizzled(row, 2 * step + ((lane >> 3) & 1)));
  }
}

// All threads of the block agree: true if the tile's signals are up, false if the kernel is to end.
DEVICE bool open_gate(const GemmParams& p, const RowTile& tile, u32 entry) {
  bool failed = threadIdx.x == 0 && has_fault(p.wait);
  for (u32 signal = tile.gate_begin + threadIdx.x; signal < tile.gate_end && !failed; signal += C::kThreads) {
    const u32 peer = tile.peer + (POLICY == rs ? signal - tile.gate_begin : 0);
    failed = !wait_for(p.wait, p.gates + 4ull * signal, p.gate_epoch, peer, entry, signal);
  }
  return __syncthreads_or(failed) == 0;
}

// Writes the tile from shared memory, in full lines where pitch and address allow.
DEVICE void store_tile(u32 from, u16* to, u64 pitch, u32 rows, u32 columns) {
  const bool aligned = ((u64)to & 15) == 0 && (pitch & 7) == 0;
  const u32 column = 8 * (threadIdx.x % C::kOutChunks);
  if (column >= columns) return;
  for (u32 row = threadIdx.x / C::kOutChunks; row < rows; row += C::kThreads / C::kOutChunks) {
    u32 v[4];
    load_shared_16(v, from + row * C::kOutPitch + column * 2);
    u16* place = to + row * pitch + column;
    if (aligned && column + 8 <= columns) {
      store_global_16(place, v);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (column + j < columns) store_global_2(place + j, (u16)(v[j / 2] >> (16 * (j & 1))));
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(C::kThreads, MIN_BLOCKS) ENTRY(const __grid_constant__ Putting<Traced<ELEMENT::Params>> params) {
  const GemmParams& p = params;
  extern __shared__ __align__(128) u8 shared[];
  const u32 stages = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % C::kWarpsM, warp_n = warp / C::kWarpsM;
  const int blocks_k = (int)((p.k + C::kTileK - 1) / C::kTileK);
  const int kSteps = C::kRowBytes / 32;
  u32 open_begin = 0, open_end = 0;  // the gate that was opened last: signals do not fall

  for (u32 index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const u32 entry = ((const u32*)p.order)[index];
    const RowTile& tile = ((const RowTile*)p.row_tiles)[entry >> 16];  // looked up again where it is needed
    const u32 rows = tile.rows;
    const u32 first_column = (entry & 0xffff) * C::kTileN;
    const u32 columns = min((u32)C::kTileN, p.n - first_column);

    if (threadIdx.x == 0) trace_unit(p, index, entry, 0, POLICY != rs);
    if (POLICY == ag && (tile.gate_begin != open_begin || tile.gate_end != open_end)) {
      if (!open_gate(p, tile, entry)) return;
      open_begin = tile.gate_begin, open_end = tile.gate_end;
    }
    if (threadIdx.x == 0 && POLICY != rs) trace(p, index, kTraceGateEnd);

    const bool is_own = POLICY == ag && tile.row - p.own_row < p.own_rows;
    // Where row 0 would be. (Registers are short: to choose between rows as well would spill them.)
    const u64 first = is_own ? p.own_a - p.own_row * p.lda * sizeof(Bits) : p.a;
    const Bits* a = (const Bits*)first + tile.row * p.lda;
    const Bits* b = (const Bits*)p.b + first_column * p.ldb;
    auto load_stage = [&](int block) {
      const u32 stage = stages + (block % C::kStages) * C::kStageBytes;
      load_block<C::kTileM>(stage, a, p.lda, rows, p.k, block * C::kTileK);
      load_block<C::kTileN>(stage + C::kBytesA, b, p.ldb, columns, p.k, block * C::kTileK);
    };

    float sums[C::kFragmentsM][C::kFragmentsN][4] = {};
    // Fill the pipeline. A group is committed for every block, also when there is none: the waits count groups.
#pragma unroll
    for (int block = 0; block < C::kStages - 1; ++block) {
      if (block < blocks_k) load_stage(block);
      copy_async_commit();
    }
    copy_async_wait<C::kStages - 2>();
    __syncthreads();
    if (threadIdx.x == 0) trace(p, index, kTraceFirstStage);
    Fragments fragments[2];
    if (blocks_k > 0) load_fragments(fragments[0], stages, 0, warp_m, warp_n, lane);

    u32 stage = stages;
    for (int block = 0; block < blocks_k; ++block) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          // The next fragments come from the next block: wait for it; all warps are done with this one's loads.
          copy_async_wait<C::kStages - 2>();
          __syncthreads();
          stage = stages + ((block + 1) % C::kStages) * C::kStageBytes;
        }
        load_fragments(fragments[(step + 1) % 2], stage, (step + 1) % kSteps, warp_m, warp_n, lane);
        if (step == 0) {
          if (block + C::kStages - 1 < blocks_k) load_stage(block + C::kStages - 1);
          copy_async_commit();
        }
        const Fragments& f = fragments[step % 2];
#pragma unroll
        for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
          for (int j = 0; j < C::kFragmentsN; ++j) {
            ELEMENT::multiply(sums[i][j], f.a[i], f.b[j / 2][2 * (j & 1)], f.b[j / 2][2 * (j & 1) + 1]);
          }
        }
      }
    }

    // Lay the rounded tile out in shared memory, so that it leaves in full lines.
    copy_async_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0) trace(p, index, kTraceMultiplied);
#pragma unroll 1
    for (int i = 0; i < C::kFragmentsM; ++i, bring_forward<C::kFragmentsM, 4 * C::kFragmentsN>(sums[0][0], i)) {
      float(&d)[C::kFragmentsN][4] = sums[0];
      const int row = warp_m * C::kWarpM + 16 * i + lane / 4, column = warp_n * C::kWarpN + 2 * (lane % 4);
      if (ELEMENT::kScaled) {
#pragma unroll
        for (int j = 0; j < C::kFragmentsN; ++j) {
#pragma unroll
          for (int s = 0; s < 4; ++s) d[j][s] *= (float)ELEMENT::kUnit;
        }
        scale<C::kFragmentsN>(d[0], scales_of(params), {tile.row + row, tile.row + rows, first_column + column, p.n});
      }
      if (POLICY != rs) {  // who sums the slots adds the bias, once
        if (p.bias != 0) add_bias<Result, C::kFragmentsN>(d[0], p.bias, p.n, first_column + column);
        activate<C::kFragmentsN>(d[0], p.activation);
        if (p.activation == Activation::swiglu) {
#pragma unroll
          for (int j = 0; j < C::kFragmentsN; ++j) {
            const u32 place = stages + row * C::kOutPitch + (warp_n * C::kWarpN + 8 * j) + 2 * (lane % 4);
            const u32 rows = Result::round_pair(d[j][0], d[j][2]);
            store_shared_2(place, (u16)rows);
            store_shared_2(place + 8 * C::kOutPitch, (u16)(rows >> 16));
          }
          continue;
        }
      }
#pragma unroll
      for (int j = 0; j < C::kFragmentsN; ++j) {
        const u32 place = stages + row * C::kOutPitch + (column + 8 * j) * 2;
        store_shared_4(place, Result::round_pair(d[j][0], d[j][1]));
        store_shared_4(place + 8 * C::kOutPitch, Result::round_pair(d[j][2], d[j][3]));
      }
    }
    if (POLICY == rs) {
      // The gate is the destinations' word that they have summed what their slots held before.
      if (threadIdx.x == 0) trace(p, index, kTraceGateBegin);
      if (!open_gate(p, tile, entry)) return;  // also a barrier
      if (threadIdx.x == 0) trace(p, index, kTraceGateEnd);
      const Destination* destinations = (const Destination*)p.destinations + tile.destination;
      for (u32 i = 0; i < p.destination_count; ++i) {
        u16* slot = (u16*)destinations[i].slot + tile.destination_row * p.ldc + first_column;
        store_tile(stages, slot, p.ldc, rows, columns);
      }
      __syncthreads();
      if (threadIdx.x == 0) trace(p, index, kTraceStored);
      if (deliver(params, tile)) trace(p, index, kTraceSignal);
    } else {
      __syncthreads();
      u16* c = (u16*)p.c + tile.row * p.ldc + columns_of_c(p, first_column);
      store_tile(stages, c, p.ldc, rows, columns_of_c(p, columns));
      __syncthreads();
      if (threadIdx.x == 0) trace(p, index, kTraceStored);
    }
  }
}
