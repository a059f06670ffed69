// The element types of A and B: how they multiply, and how they convert. What is summed is rounded to Result.
#pragma once

#include "ptx.cuh"

struct Bf16 {
  using Bits = u16;
  using Result = Bf16;
  using Params = GemmParams;
  // Whether sums are multiplied by scales of A and B, and what those of `multiply` must be multiplied by in any case.
  enum { kScaled = 0, kUnit = 1 };
  // d += a * b for a 16x8 tile of D, k = 16.
  DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
  // Two floats, rounded to nearest even, the first in the lower half.
  DEVICE u32 round_pair(float low, float high);
  DEVICE float widen(u16 bits) { return __uint_as_float((u32)bits << 16); }
};

struct F16 {
  using Bits = u16;
  using Result = F16;
  using Params = GemmParams;
  enum { kScaled = 0, kUnit = 1 };
  DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
  DEVICE u32 round_pair(float low, float high);
  DEVICE float widen(u16 bits) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
  }
};

#define DEFINE_MULTIPLY(Type, name)                                                                               \
  __device__ __forceinline__ void Type::multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "     \
                 "{%8,%9}, {%0,%1,%2,%3};"                                                                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                 \
  }                                                                                                               \
  __device__ __forceinline__ u32 Type::round_pair(float low, float high) {                                                            \
    u32 v;                                                                                                        \
    asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));                                     \
    return v;                                                                                                     \
  }

DEFINE_MULTIPLY(Bf16, "bf16")
DEFINE_MULTIPLY(F16, "f16")
#undef DEFINE_MULTIPLY

// 8 bits: sign, 4 of exponent, 3 of mantissa; no infinities, and one NaN of each sign.
struct E4m3 {
  using Bits = u8;
  using Result = Bf16;
  using Params = ScaledGemmParams;
  enum { kScaled = 1, kUnit = 65536 };  // of products: 256 of elements

  // Two elements, in the upper bytes of both halves, as f16: exactly, but for the unit. Sign and mantissa find their places,
  // and the exponent is less by the difference of the biases, 8; also where it is 0, as subnormals of both types have the
  // same spacing then. A NaN gets all ones for an exponent: no other element carries into the bit that is added here.
  DEVICE u32 as_f16(u32 x) {
    const u32 magnitudes = (x >> 1) & 0x3f803f80;
    return (x & 0x80008000) | magnitudes | ((magnitudes + 0x00800080) & 0x40004000);
  }

  // The same fragments as above, of twice as many elements of half the size: older GPUs multiply them as f16. Which of the
  // elements meet in which of the two multiplications does not matter, as long as it is the same for A and B.
  DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 first[4] = {as_f16(a[0] << 8), as_f16(a[1] << 8), as_f16(a[0]), as_f16(a[1])};
    F16::multiply(d, first, as_f16(b0 << 8), as_f16(b0));
    const u32 second[4] = {as_f16(a[2] << 8), as_f16(a[3] << 8), as_f16(a[2]), as_f16(a[3])};
    F16::multiply(d, second, as_f16(b1 << 8), as_f16(b1));
  }
};
