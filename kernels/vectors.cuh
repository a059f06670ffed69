// A tile's vectors: the scales of its rows and columns, the bias of its columns. The loader brings them to shared memory while the tile is
// multiplied: who waited for memory when it has been would wait long.
//
// Of gemm_hopper.cu, behind its Unit.
#pragma once

// Of the tile's sum, if it is folded; else of C.
DEVICE u64 bias_of(const HopperParams& p, bool folded) { return folded ? p.gemm.fold.bias : p.gemm.bias; }

// Whether a unit's sums are scaled one by one: not if all have the same scale, by which they are then multiplied as they are moved or
// rounded, unless they are parts, which are summed before, or have a bias.
DEVICE bool takes_scales(const HopperParams& p, const Unit& unit, bool folded) {
  return ELEMENT::kScaled && (unit.parts > 1 || bias_of(p, folded) != 0 || !is_one_scale(p.scales));
}

DEVICE bool takes_vectors(const HopperParams& p, const Unit& unit, bool folded) {
  return takes_scales(p, unit, folded) || bias_of(p, folded) != 0;
}

// Arrivals when a tile's vectors are there: scales are copied asynchronously, by each lane.
static const u32 kVectorsArrivals = 1 + (ELEMENT::kScaled ? 32 : 0);

// What scales are that are not there.
static __device__ const float kOne = 1.0f;

// Loads the vectors of the tile at a row and column, behind its gate: scales of an AllGather's rows come with them. Beyond the last row or
// column it is anything that is there.
DEVICE void load_vectors(const HopperParams& p, u64 bias, u32 row, u32 column, u32 shared, u32 lap, u32 lane) {
  barrier_wait(shared + Layout::kVectorsFree, lap ^ 1);
  if constexpr (ELEMENT::kScaled) {
    const u64 of_a = p.scales.a != 0 ? p.scales.a : (u64)&kOne, of_b = p.scales.b != 0 ? p.scales.b : (u64)&kOne;
#pragma unroll 1
    for (u32 i = lane; i < C::kTileM; i += 32) {
      copy_async_4(shared + Layout::kRowScales + 4 * i, of_a + 4ull * min(row + i, p.gemm.m - 1) * p.scales.a_stride);
    }
#pragma unroll 1
    for (u32 i = lane; i < C::kTileN; i += 32) {
      copy_async_4(shared + Layout::kColumnScales + 4 * i, of_b + 4ull * min(column + i, p.gemm.n - 1) * p.scales.b_stride);
    }
    barrier_arrive_with_copies(shared + Layout::kVectorsReady);
  }
  if (bias != 0) {
    u16 v[C::kTileN / 32];  // all on their way before the first is stored
#pragma unroll
    for (u32 i = 0; i < C::kTileN / 32; ++i) v[i] = load_global_2((const u16*)bias + min(column + 32 * i + lane, p.gemm.n - 1));
#pragma unroll
    for (u32 i = 0; i < C::kTileN / 32; ++i) store_shared_2(shared + Layout::kBias + 2 * (32 * i + lane), v[i]);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(shared + Layout::kVectorsReady);
}

// The vectors where a thread's sums of a piece are.
struct PieceVectors {
  u32 row, column;  // in the tile: of the first one
  u32 shared;

  template <typename Giver>
  DEVICE_METHOD PieceVectors(u32 piece, u32 blocks, const Giver& of)
      : row(first_row_of(piece, blocks, of.group) + 16 * of.warp + of.lane / 4),
        column((C::kSplitsN ? of.group * C::kGroupN : 0) + piece % C::kPiecesN * C::kPieceN + 2 * (of.lane % 4)),
        shared(of.shared) {}

  DEVICE_METHOD void scale(float* d) const {
    const u32 rows = shared + Layout::kRowScales + 4 * row, columns = shared + Layout::kColumnScales + 4 * column;
    const float upper = load_shared_float(rows), lower = load_shared_float(rows + 4 * 8);
#pragma unroll
    for (int block = 0; block < C::kPieceN / 8; ++block) {
      float left, right;
      load_shared_floats(left, right, columns + 4 * 8 * block);
      d[4 * block] *= upper * left, d[4 * block + 1] *= upper * right;
      d[4 * block + 2] *= lower * left, d[4 * block + 3] *= lower * right;
    }
  }
  DEVICE_METHOD void add_bias(float* d) const {
#pragma unroll
    for (int block = 0; block < C::kPieceN / 8; ++block) {
      const u32 pair = load_shared_4(shared + Layout::kBias + 2 * (column + 8 * block));
      const float low = Result::widen((u16)pair), high = Result::widen((u16)(pair >> 16));
      d[4 * block] += low, d[4 * block + 1] += high;
      d[4 * block + 2] += low, d[4 * block + 3] += high;
    }
  }
};
