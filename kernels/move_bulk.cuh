// Moves bytes through shared memory by Hopper's copy engine, TILE_N bytes at a time: one thread of a block keeps BUFFERS
// steps on their way. Beside the GEMMs of eight ranks, threads that load and store by themselves moved 19 GB/s on each SM,
// measured on an H200: their loads have no room to wait for a memory that others use, too.
#pragma once

#include "hopper.cuh"

static const u32 kThreads = 32;
static const u32 kBlocksPerSm = 8;

struct Mover {
  // A step's buffer is loaded again when the stores before the last one have read theirs.
  static const u32 kAhead = BUFFERS - 2;
  u32 shared, full;
  Ring<BUFFERS> loads, stores;

  DEVICE_METHOD void begin() {
    extern __shared__ u8 unaligned[];
    shared = (shared_address(unaligned) + 127) & ~127u;
    full = shared + BUFFERS * TILE_N;
    if (threadIdx.x == 0) {
      for (u32 i = 0; i < BUFFERS; ++i) barrier_init(full + 8 * i, 1);
      barrier_init_fence();
    }
    __syncwarp();
  }

  // This block's part of `bytes` bytes, to so many peers: steps of TILE_N bytes in turn, the last of which may be shorter. It is
  // written when this returns.
  DEVICE_METHOD void move_part(const PushPeer* peers, u32 count, u64 to, u64 from, u64 bytes) {
    const u32 steps = (u32)((bytes + TILE_N - 1) / TILE_N);
    if (elect_one()) {
      u32 loading = blockIdx.x;
      auto load = [&]() {
        if (loading >= steps) return;
        const u64 at = (u64)loading * TILE_N;
        const u32 size = (u32)min((u64)TILE_N, bytes - at), barrier = full + 8 * loads.place;
        barrier_expect(barrier, size);
        load_bytes(shared + loads.place * TILE_N, from + at, size, barrier);
        loads.next();
        loading += gridDim.x;
      };
      for (u32 i = 0; i < kAhead; ++i) load();
      for (u32 step = blockIdx.x; step < steps; step += gridDim.x) {
        const u64 at = (u64)step * TILE_N;
        barrier_wait(full + 8 * stores.place, stores.lap);
        const u32 size = (u32)min((u64)TILE_N, bytes - at);
        for (u32 i = 0; i < count; ++i) store_bytes(peers[i].gathered + to + at, shared + stores.place * TILE_N, size);
        store_box_commit();
        stores.next();
        store_box_wait_read<1>();
        load();
      }
      store_box_wait();
    }
    __syncwarp();
  }
};
