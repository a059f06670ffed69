// What becomes of a sum before it is rounded, in fp32: it is scaled, the column's bias is added, then an activation applied.
//
// A thread has, of each block of 8 columns, two rows of two adjacent columns: d[0], d[1] and d[2], d[3]. That is how
// both kernels' accumulators lie, and it brings the pairs of columns that SwiGLU takes together.
#pragma once

#include "element.cuh"

// A tile leaves piece by piece: moves the sums of piece `next`, times `scale`, to where the first one's were, so that one copy
// of what is done with a piece does for all. Registers have no index, and the driver would compile a copy for each. It always
// writes there, also behind the last piece: what nobody reads any more needs no registers meanwhile.
template <int kPieces, int kPieceSums, int kPiece = 1>
DEVICE void bring_forward(float* sums, u32 next, float scale = 1.0f) {
  if constexpr (kPiece + 1 < kPieces) {
    if (next != kPiece) return bring_forward<kPieces, kPieceSums, kPiece + 1>(sums, next, scale);
  }
  if constexpr (kPiece < kPieces) {
#pragma unroll
    for (int j = 0; j < kPieceSums; ++j) sums[j] = sums[kPiece * kPieceSums + j] * scale;
  }
}

// Where a thread's first sum lies in the whole matrix, and where its rows and columns end.
struct Corner {
  u32 row, end_row, column, end_column;
};

DEVICE Scales scales_of(const ScaledGemmParams& p) { return p.scales; }
DEVICE Scales scales_of(const GemmParams&) { return {}; }

// `otherwise` if there is one for all, or none at `index`.
DEVICE float scale_at(u64 scales, u32 stride, u32 index, u32 end, float otherwise) {
  const u32 bits = __float_as_uint(otherwise);
  return __uint_as_float(load_global_4_or(scales + 4ull * index, stride == 0 || index >= end, bits));
}
DEVICE float first_scale(u64 scales) { return __uint_as_float(load_global_4_or(scales, scales == 0, 0x3f800000)); }

// Whether all sums have the same scale.
DEVICE bool is_one_scale(const Scales& scales) { return (scales.a_stride | scales.b_stride) == 0; }

// Multiplies `kBlocks` blocks of columns by the scales of their rows and columns. Without a branch, of which both sides would
// need the sums: scales that are not there are not loaded.
template <int kBlocks>
DEVICE void scale(float* d, const Scales& scales, const Corner& at) {
  const float of_a = first_scale(scales.a), of_b = first_scale(scales.b);
  const float upper = scale_at(scales.a, scales.a_stride, at.row, at.end_row, of_a);
  const float lower = scale_at(scales.a, scales.a_stride, at.row + 8, at.end_row, of_a);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const u32 column = at.column + 8 * block;
    const float left = scale_at(scales.b, scales.b_stride, column, at.end_column, of_b);
    const float right = scale_at(scales.b, scales.b_stride, column + 1, at.end_column, of_b);
    d[4 * block] *= upper * left, d[4 * block + 1] *= upper * right;
    d[4 * block + 2] *= lower * left, d[4 * block + 3] *= lower * right;
  }
}

// Adds the bias of `n` columns to `kBlocks` blocks of them; `column` is the thread's first one.
template <typename Element, int kBlocks>
DEVICE void add_bias(float* d, u64 address, u32 n, u32 column) {
  const u16* bias = (const u16*)address + column;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const u32 first = column + 8 * block;
    const float low = Element::widen(load_global_2_or_0(bias + 8 * block, first < n));
    const float high = Element::widen(load_global_2_or_0(bias + 8 * block + 1, first + 1 < n));
    d[4 * block] += low, d[4 * block + 1] += high;
    d[4 * block + 2] += low, d[4 * block + 3] += high;
  }
}

// What x is multiplied by: 1 / (1 + exp(-y)), with y = x * (linear + cubic * x^2). For SiLU, y = x. GELU in its tanh
// form is the same with another y, since (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)). Both factors are for powers of 2.
struct Sigmoid {
  float linear, cubic;
};

DEVICE Sigmoid sigmoid_of(Activation activation) {
  // -2 sqrt(2/pi) log2(e), and 0.044715 times that; SiLU's cubic factor is not 0, or infinity times it would be a NaN.
  if (activation == Activation::gelu) return {-2.3022082f, -0.10294324f};
  return {-1.4426950f, -1.1754944e-38f};
}

DEVICE float times_sigmoid(float x, Sigmoid sigmoid) {
  return x * reciprocal(1.0f + power_of_2(x * (sigmoid.linear + sigmoid.cubic * x * x)));
}

// Applies the activation to `kBlocks` blocks of columns. SwiGLU leaves its results, one for each pair, in d[0] and
// d[2].
template <int kBlocks>
DEVICE void activate(float* d, Activation activation) {
  if (activation == Activation::none) return;
  const Sigmoid sigmoid = sigmoid_of(activation);
#pragma unroll
  for (int pair = 0; pair < 2 * kBlocks; ++pair) d[2 * pair] = times_sigmoid(d[2 * pair], sigmoid);
  if (activation == Activation::swiglu) {
#pragma unroll
    for (int pair = 0; pair < 2 * kBlocks; ++pair) d[2 * pair] *= d[2 * pair + 1];
  } else {
#pragma unroll
    for (int pair = 0; pair < 2 * kBlocks; ++pair) d[2 * pair + 1] = times_sigmoid(d[2 * pair + 1], sigmoid);
  }
}

// Whether C has one column for each pair of the sums'.
DEVICE bool makes_pairs(const GemmParams& p) { return p.activation == Activation::swiglu; }
DEVICE u32 columns_of_c(const GemmParams& p, u32 columns) { return makes_pairs(p) ? columns / 2 : columns; }
