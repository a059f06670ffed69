// Putting a ReduceScatter's tiles into memory of peers that this rank's kernels are given no address of, by NVSHMEM: in kernels
// compiled with PUTS, which are relocatable and linked with NVSHMEM's device library where they are first needed. Without it
// everything here is empty.
//
// What is put, and signalled, is a block of rows: whoever writes its last tile puts all of it, from this rank's memory. Its tiles
// wait for the peer's word that it has summed what was there before: so what they overwrite here has been delivered.
#pragma once

#include "signals.cuh"

// The ordinary parameters, and those of puts.
#ifdef PUTS
template <typename Params>
struct Putting : Params {
  PutParams puts;
};

// Of NVSHMEM's device library: what its puts with a signal come to where the peer's memory is not mapped; by one thread.
extern "C" __device__ void _Z28nvshmemi_transfer_put_signalIL13threadgroup_t0EEvPvS1_mS1_m14nvshmemi_amo_tib(
    void* to, void* from, unsigned long bytes, void* signal, unsigned long value, int operation, int pe, bool goes_on);

// The whole block copies `bytes` bytes, a multiple of 16, to addresses that are multiples of it.
DEVICE void copy_block(u64 to, u64 from, u64 bytes) {
  for (u64 at = 16ull * threadIdx.x; at < bytes; at += 16ull * blockDim.x) {
    u32 v[4];
    load_global_16(v, (const void*)(from + at));
    store_global_16((void*)(to + at), v);
  }
}

// The whole block has written the tile to its destination's `slot`, and all its threads know: if that is a peer's memory, the
// tile is counted, as elsewhere; else the tile that completes its block of rows puts it. True in thread 0 if the block of rows is
// complete.
DEVICE bool deliver(const Putting<GemmParams>& p, const RowTile& tile) {
  const PutRoute& route = ((const PutRoute*)p.puts.routes)[tile.destination];
  if (route.way == PutWay::none) return threadIdx.x == 0 && count_tile(p, tile);
  if (__syncthreads_or(threadIdx.x == 0 && is_last_of_block(p, tile)) == 0) return false;
  const u32 shard_rows = p.m / p.puts.world_size + (tile.destination < p.m % p.puts.world_size);
  const u32 first_row = tile.signal * p.puts.block_rows;
  const u64 row_bytes = p.ldc * sizeof(u16), offset = first_row * row_bytes;
  const u64 bytes = min(p.puts.block_rows, shard_rows - first_row) * row_bytes;
  const u64 from = ((const Destination*)p.destinations)[tile.destination].slot + offset;
  const u64 to = route.slot + offset, signal = route.signals + sizeof(u64) * tile.signal;
  if (route.way == PutWay::address) {
    copy_block(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
      fence_system();
      store_release_system_8(signal, p.epoch);
    }
  } else if (threadIdx.x == 0) {
    fence_system();  // what other blocks have written, before somebody else reads it
    _Z28nvshmemi_transfer_put_signalIL13threadgroup_t0EEvPvS1_mS1_m14nvshmemi_amo_tib(
        (void*)to, (void*)from, bytes, (void*)signal, p.epoch, (int)p.puts.set, (int)route.pe, true);
  }
  return threadIdx.x == 0;
}
#else
template <typename Params>
using Putting = Params;

DEVICE bool deliver(const GemmParams& p, const RowTile& tile) { return threadIdx.x == 0 && count_tile(p, tile); }
#endif
