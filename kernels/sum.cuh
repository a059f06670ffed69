// One step of a ReduceScatter's sum: wherever it is computed, the bits are the same.
#pragma once

#include "element.cuh"

// A source's pair of columns. The first one is added to +0: a sum of nothing but -0 is +0.
template <typename Element>
DEVICE void add_pair(float* sums, u32 pair, bool is_first = false) {
  sums[0] = (is_first ? 0 : sums[0]) + Element::widen((u16)pair);
  sums[1] = (is_first ? 0 : sums[1]) + Element::widen((u16)(pair >> 16));
}

// 8 columns.
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
