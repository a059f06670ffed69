// The two element types: how they multiply, and how they convert.
#pragma once

#include "ptx.cuh"

struct Bf16 {
  // d += a * b for a 16x8 tile of D, k = 16.
  DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
  // Two floats, rounded to nearest even, the first in the lower half.
  DEVICE u32 round_pair(float low, float high);
  DEVICE float widen(u16 bits) { return __uint_as_float((u32)bits << 16); }
};

struct F16 {
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
