// GELU in place, in fp32: x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2.
//
// Compiled once per variant (variants.toml) with these defined: ELEMENT, ENTRY.

#include "element.cuh"

DEVICE float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

extern "C" __global__ void __launch_bounds__(256) ENTRY(const __grid_constant__ GeluParams p) {
  u16* values = (u16*)p.values;
  const u64 threads = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.len; i += threads) {
    const float y = gelu(ELEMENT::widen(load_global_2(values + i)));
    store_global_2(values + i, (u16)ELEMENT::round_pair(y, 0.0f));
  }
}
