// What becomes of a sum before it is rounded, in fp32: the column's bias is added, then an activation applied.
//
// A thread has, of each block of 8 columns, two rows of two adjacent columns: d[0], d[1] and d[2], d[3]. That is how
// both kernels' accumulators lie, and it brings the pairs of columns that SwiGLU takes together.
#pragma once

#include "element.cuh"

// Adds the bias to `kBlocks` blocks of columns; `column` is the thread's first one.
template <typename Element, int kBlocks>
DEVICE void add_bias(float* d, const GemmParams& p, u32 column) {
  const u16* bias = (const u16*)p.bias + column;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const u32 first = column + 8 * block;
    const float low = Element::widen(load_global_2_or_0(bias + 8 * block, first < p.n));
    const float high = Element::widen(load_global_2_or_0(bias + 8 * block + 1, first + 1 < p.n));
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

// Columns of C for so many of the sums'.
DEVICE u32 columns_of_c(const GemmParams& p, u32 columns) {
  return p.activation == Activation::swiglu ? columns / 2 : columns;
}
