// Moves bytes through registers, on every GPU. TILE_N bytes at a time.
#pragma once

#include "ptx.cuh"

static const u32 kThreads = 256;
static const u32 kBlocksPerSm = 6;  // what all GPUs have threads for; with 32 registers it is 8 where there are 2,048

struct Mover {
  static const u32 kVector = 16;                          // bytes of an access
  static const u32 kLoads = TILE_N / kVector / kThreads;  // in flight in each thread
  static_assert(kLoads * kVector * kThreads == TILE_N, "a block moves whole vectors");

  DEVICE_METHOD void begin() {}

  // This block's part of `bytes` bytes, to so many peers: steps of TILE_N bytes in turn, and what is left over for one of the blocks.
  DEVICE_METHOD void move_part(const PushPeer* peers, u32 count, u64 to, u64 from, u64 bytes) {
    const u32 steps = (u32)(bytes / TILE_N);
    u32 step = blockIdx.x;
    for (; step < steps; step += gridDim.x) {
      const u64 at = (u64)step * TILE_N + threadIdx.x * kVector;
      const void* source = (const void*)(from + at);
      u32 v[kLoads][4];
#pragma unroll
      for (u32 i = 0; i < kLoads; ++i) load_global_16(v[i], (const u8*)source + i * (kThreads * kVector));
#pragma unroll
      for (u32 i = 0; i < kLoads; ++i) {
        const u64 target = to + at + i * (kThreads * kVector);
        for (u32 peer = 0; peer < count; ++peer) store_global_16((void*)(peers[peer].gathered + target), v[i]);
      }
    }
    if (step == steps) {
      for (u64 at = (u64)steps * TILE_N + threadIdx.x * kVector; at < bytes; at += kThreads * kVector) {
        u32 v[4];
        load_global_16(v, (const void*)(from + at));
        for (u32 peer = 0; peer < count; ++peer) store_global_16((void*)(peers[peer].gathered + to + at), v);
      }
    }
    __syncthreads();
  }
};
