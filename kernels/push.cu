// The AllGather's own kernel: one launch moves a rank's whole shard to all its peers, chunk by chunk, and raises each chunk's
// signal when all of its bytes are written. All blocks share every chunk, so the first one is there early. Peers are served one
// by one, so that the first of them can begin; where each waits for all shards, together: what is loaded once is then stored at
// each of them, which takes a third less time.
//
// It takes the place of as many copies as there are peers and chunks where those would run on SMs anyway. Blocks wait for
// nothing, and so need not run at once: the peers have acknowledged before the launch.
//
// Compiled for Hopper, and for all other GPUs (variants.toml). Defined: ENTRY, TILE_N; for Hopper BUFFERS.

#include "ptx.cuh"
#ifdef BUFFERS
#include "move_bulk.cuh"
#else
#include "move_vectors.cuh"
#endif

// Counts this block's part as written; whoever counts the last part of a chunk raises its signal at those who were served. Blocks
// take the chunks in order, so when the last chunk is counted, all before it are written. One thread, behind a barrier of its
// block.
DEVICE void count_part(const PushParams& p, const PushPeer* peers, u32 count, u32 counter, u32 chunk) {
  fence_system();  // the bytes, maybe at another GPU, come before the count
  if (increment_around(p.counters + 4ull * counter, gridDim.x - 1) != gridDim.x - 1) return;
  fence_system();
  for (u32 index = 0; index < count; ++index) {
    const PushPeer& peer = peers[index];
    if (p.by_shard != 0) {
      if (chunk == p.chunks - 1 && peer.arrived != 0) store_relaxed_system(peer.arrived, p.epoch);
    } else if (peer.signals != 0) {
      store_relaxed_system(peer.signals + 4ull * chunk, p.epoch);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm) ENTRY(const __grid_constant__ PushParams p) {
  Mover mover;
  mover.begin();
  const u32 count = p.by_shard != 0 ? p.peer_count : 1;
  for (u32 first = 0; first < p.peer_count; first += count) {
    const PushPeer* peers = (const PushPeer*)p.peers + first;
    for (u32 chunk = 0; chunk < p.chunks; ++chunk) {
      const u64 begin = chunk * p.chunk_bytes, bytes = min(p.chunk_bytes, p.bytes - begin);
      mover.move_part(peers, count, p.offset + begin, p.shard + begin, bytes);
      if (threadIdx.x == 0) count_part(p, peers, count, first * p.chunks + chunk, chunk);
    }
  }
}
