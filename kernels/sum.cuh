// One step of a ReduceScatter's sum: wherever it is computed, the bits are the same.
#pragma once

#include "element.cuh"

// A source's pair of columns. The first one is added to +0: a sum of nothing but -0 is +0.
template <typename Element>
DEVICE void add_pair(float* sums, u32 pair, bool is_first = false) {
  sums[0] = (is_first ? 0 : sums[0]) + Element::widen((u16)pair);
  sums[1] = (is_first ? 0 : sums[1]) + Element::widen((u16)(pair >> 16));
}
