// The second half of a ReduceScatter: the owner sums its slots, in rank order, in fp32, adds the bias, and rounds once.
// The order does not depend on what arrives first, so neither do the bits.
//
// Compiled once per variant (variants.toml) with these defined: ELEMENT, ENTRY, TILE_M, TILE_N.

#include "signals.cuh"
#include "sum.cuh"

static const int kThreads = 256;
static const int kChunks = TILE_N / 8;  // of 16 bytes, in a row of a tile
static_assert(kThreads % kChunks == 0, "threads go over rows in step");

// A source's 8 columns.
template <typename Element>
DEVICE void add_chunk(float (&sums)[8], const u32 (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) add_pair<Element>(sums + 2 * j, v[j]);
}

// The bias comes last, and what comes of it is rounded once.
template <typename Element>
DEVICE void finish_chunk(u32 (&v)[4], const float (&sums)[8], const float (&bias)[8]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[j] = Element::round_pair(sums[2 * j] + bias[2 * j], sums[2 * j + 1] + bias[2 * j + 1]);
  }
}

// The bias of 8 columns from `column` on, of `n`; zeros if there is none.
template <typename Element>
DEVICE void load_bias(float (&to)[8], u64 bias, u32 column, u32 n) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    to[j] = Element::widen(load_global_2_or_0((const u16*)bias + column + j, bias != 0 && column + j < n));
  }
}

DEVICE void load_chunk(u32 (&v)[4], const u16* from, bool aligned, u32 columns) {
  if (aligned) {
    load_global_16(v, from);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    u32 low = 2 * j < columns ? load_global_2(from + 2 * j) : 0;
    u32 high = 2 * j + 1 < columns ? load_global_2(from + 2 * j + 1) : 0;
    v[j] = low | high << 16;
  }
}

DEVICE void store_chunk(u16* to, const u32 (&v)[4], bool aligned, u32 columns) {
  if (aligned && columns >= 8) {
    store_global_16(to, v);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < columns) store_global_2(to + j, (u16)(v[j / 2] >> (16 * (j & 1))));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) ENTRY(const __grid_constant__ SumParams p) {
  const u32 column_tiles = (p.n + TILE_N - 1) / TILE_N;
  const u32 tiles = (p.rows + TILE_M - 1) / TILE_M * column_tiles;
  // A slot's pitch has room for a whole chunk behind the last column if it is a multiple of one.
  const bool slots_aligned = ((p.slots | 2 * p.ld_slot | 2 * p.source_pitch) & 15) == 0;
  const bool out_aligned = ((p.out | 2 * p.ld_out) & 15) == 0;

  for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const u32 row_tile = tile / column_tiles, column_tile = tile % column_tiles;
    bool failed = threadIdx.x == 0 && has_fault(p.wait);
    for (u32 source = threadIdx.x; source < p.world_size && !failed; source += kThreads) {
      const u32 signal = source * p.source_stride + row_tile * TILE_M / p.signal_rows;
      failed = !wait_for(p.wait, p.signals + 4ull * signal, p.epoch, source, row_tile << 16 | column_tile, signal);
    }
    if (__syncthreads_or(failed)) return;

    const u32 column = column_tile * TILE_N + 8 * (threadIdx.x % kChunks);
    if (column >= p.n) continue;
    const u32 columns = min(8u, p.n - column);
    float bias[8];
    load_bias<ELEMENT>(bias, p.bias, column, p.n);
    const u32 last_row = min((row_tile + 1) * TILE_M, p.rows);
    for (u32 row = row_tile * TILE_M + threadIdx.x / kChunks; row < last_row; row += kThreads / kChunks) {
      const u16* slot = (const u16*)p.slots + row * p.ld_slot + column;
      float sums[8] = {};
#pragma unroll 4
      for (u32 source = 0; source < p.world_size; ++source) {
        u32 v[4];
        load_chunk(v, slot + source * p.source_pitch, slots_aligned, columns);
        add_chunk<ELEMENT>(sums, v);
      }
      u32 v[4];
      finish_chunk<ELEMENT>(v, sums, bias);
      store_chunk((u16*)p.out + row * p.ld_out + column, v, out_aligned, columns);
    }
  }
}
