// The pieces in which a finished tile leaves: 64 rows of 64, 32, 16 or 8 columns, through shared memory.
#pragma once

#include "epilogue.cuh"
#include "hopper.cuh"

// Where a 16-byte chunk of a piece's row lies: as the copy engine swizzles rows of 128, 64 or 32 bytes, but not of 16.
template <int kColumns>
DEVICE u32 piece_place(u32 row, u32 chunk) {
  const u32 turn = kColumns == 64 ? row & 7 : kColumns == 32 ? (row >> 1) & 3 : kColumns == 16 ? (row >> 2) & 1 : 0;
  return row * kColumns * 2 + ((chunk ^ turn) << 4);
}

// Lays a piece out that is rounded, two columns to a register: 16 rows of each warp.
template <int kColumns>
DEVICE void lay_out(const u32* pairs, u32 to, u32 warp, u32 lane) {
  const u32 row = 16 * warp + (lane & 15);
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    const u32 r[4] = {pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]};
    store_matrices(to + piece_place<kColumns>(row, 2 * j + (lane >> 4)), r);
  }
}

// Rounds a piece, times `scale`.
template <typename Element, int kColumns>
DEVICE void round_piece(u32 (&pairs)[kColumns / 4], const float* sums, float scale) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) pairs[i] = Element::round_pair(sums[2 * i] * scale, sums[2 * i + 1] * scale);
}

// SwiGLU's results of kColumns sums: half as many columns, of which adjacent ones are in different threads. So a register has two rows of one.
template <typename Element, int kColumns>
DEVICE void round_swiglu(u32* rows, const float* sums) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) rows[j] = Element::round_pair(sums[4 * j], sums[4 * j + 2]);
}
template <int kColumns>
DEVICE void lay_out_swiglu(const u32* rows, u32 to, u32 warp, u32 lane) {
  const u32 row = 16 * warp + lane / 4;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const u32 byte = 2 * (4 * (j & 1) + lane % 4);
    store_shared_2(to + piece_place<kColumns / 2>(row, j / 2) + byte, (u16)rows[j]);
    store_shared_2(to + piece_place<kColumns / 2>(row + 8, j / 2) + byte, (u16)(rows[j] >> 16));
  }
}

// Copies the first `rows` rows of a piece chunk by chunk, for what a box cannot do: rows that end where another shard begins,
// columns that end in the piece, odd addresses. `end` is behind the last column. Who copies has few registers.
template <int kColumns>
DEVICE void store_rows(const GemmParams& p, u64 pitch, u32 from, u32 row, u32 rows, u32 column, u32 end, u32 lane) {
  const u32 kChunks = kColumns / 8;
#pragma unroll 1
  for (u32 i = lane; i < rows * kChunks; i += 32) {
    const u32 chunk = i % kChunks, first = column + 8 * chunk, place = from + piece_place<kColumns>(i / kChunks, chunk);
    const u64 to = p.c + 2 * ((row + i / kChunks) * pitch + first);
    if ((to & 15) == 0 && first + 8 <= end) {
      u32 v[4];
      load_shared_16(v, place);
      store_global_16((void*)to, v);
    } else {
#pragma unroll 1
      for (u32 j = 0; j < 8 && first + j < end; ++j) store_global_2((u16*)to + j, load_shared_2(place + 2 * j));
    }
  }
}
