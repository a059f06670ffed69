// The scales of a tile's rows and columns: the loader brings them to shared memory while the tile is multiplied, since who waits for
// memory when it has been multiplied waits long.
//
// Of gemm_hopper.cu, behind its Unit.
#pragma once

// Whether a unit's sums are scaled one by one: not if all have the same scale, by which they are then multiplied as they are moved or
// rounded, unless they are parts, which are summed before.
DEVICE bool takes_scales(const HopperParams& p, const Unit& unit) {
  return ELEMENT::kScaled && (unit.parts > 1 || !is_one_scale(p.scales));
}

// What scales are that are not there.
static __device__ const float kOne = 1.0f;

// Loads the scales of the tile at a row and column, behind its gate: those of an AllGather's rows come with them. Beyond the last row or
// column it is any that is there.
DEVICE void load_scales(const HopperParams& p, u32 row, u32 column, u32 shared, u32& lap, u32 lane) {
  barrier_wait(shared + Layout::kScalesFree, lap ^ 1);
  const u64 of_a = p.scales.a != 0 ? p.scales.a : (u64)&kOne, of_b = p.scales.b != 0 ? p.scales.b : (u64)&kOne;
#pragma unroll 1
  for (u32 i = lane; i < C::kTileM; i += 32) {
    copy_async_4(shared + Layout::kScales + 4 * i, of_a + 4ull * min(row + i, p.gemm.m - 1) * p.scales.a_stride);
  }
#pragma unroll 1
  for (u32 i = lane; i < C::kTileN; i += 32) {
    copy_async_4(shared + Layout::kScales + 4 * (C::kTileM + i), of_b + 4ull * min(column + i, p.gemm.n - 1) * p.scales.b_stride);
  }
  barrier_arrive_with_copies(shared + Layout::kScalesReady);
  lap ^= 1;
}

// Multiplies `kBlocks` blocks of columns by their scales, which are there at `column`, and at `row` those of the thread's rows.
template <int kBlocks>
DEVICE void scale_by_shared(float* d, u32 row, u32 column) {
  const float upper = load_shared_float(row), lower = load_shared_float(row + 4 * 8);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    float left, right;
    load_shared_floats(left, right, column + 4 * 8 * block);
    d[4 * block] *= upper * left, d[4 * block + 1] *= upper * right;
    d[4 * block + 2] *= lower * left, d[4 * block + 3] *= lower * right;
  }
}

// The same for a warpgroup's piece, whose sums begin at `d`.
DEVICE void scale_piece(float* d, u32 piece, u32 blocks, u32 shared, u32 group, u32 warp, u32 lane) {
  const u32 row = first_row_of(piece, blocks, group) + 16 * warp + lane / 4;
  const u32 column = (C::kSplitsN ? group * C::kGroupN : 0) + piece % C::kPiecesN * C::kPieceN + 2 * (lane % 4);
  const u32 scales = shared + Layout::kScales;
  scale_by_shared<C::kPieceN / 8>(d, scales + 4 * row, scales + 4 * (C::kTileM + column));
}
