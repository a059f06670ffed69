// Waiting for signals, and raising them. A wait that outlives its budget leaves a record and ends the kernel; a trap would
// destroy the caller's context, an endless wait the caller.
#pragma once

#include "ptx.cuh"

DEVICE bool reached(u32 seen, u32 wanted) { return (int)(seen - wanted) >= 0; }

// Whether a wait of this rank has expired, here or elsewhere: then nobody waits any more.
DEVICE bool has_fault(const WaitBound& bound) { return load_relaxed_system(bound.flag) != 0; }

DEVICE void record_fault(const WaitBound& bound, u32 peer, u32 tile, u32 signal, u32 seen, u32 wanted) {
  if (exchange_system(bound.flag + 4, 1) != 0) return;  // somebody else was first
  volatile Fault* fault = (volatile Fault*)bound.record;
  fault->rank = bound.rank;
  fault->peer = peer;
  fault->op = bound.op;
  fault->tile = tile;
  fault->signal = signal;
  fault->seen = seen;
  fault->wanted = wanted;
  store_release_system(bound.record, 1);  // `state`, the first field: the host looks at the rest only after it
  store_release_system(bound.flag, 1);    // after the record: whoever gives up for the flag's sake, the reason is there
}

// Waits until the signal has reached `wanted`; false if the budget ran out or a wait elsewhere expired. What was written
// before the signal was raised may be read by this thread, and after a block barrier by the block's other threads.
DEVICE bool wait_for(const WaitBound& bound, u64 word, u32 wanted, u32 peer, u32 tile, u32 signal) {
  u64 begin = 0;
  u32 pause_ns = 64;
  while (true) {
    u32 seen = load_acquire_system(word);
    if (reached(seen, wanted)) return true;
    if (has_fault(bound)) return false;
    u64 now = global_timer_ns();
    if (begin == 0) begin = now;
    if (now - begin > bound.budget_ns) {
      record_fault(bound, peer, tile, signal, seen, wanted);
      return false;
    }
    sleep_ns(pause_ns);  // polls of many blocks would slow the copies down that they wait for
    if (pause_ns < 1024) pause_ns *= 2;
  }
}

// ReduceScatter: counts the tile as written; true if it is the last one of its block of rows. One thread, which knows that all
// of the tile is written.
DEVICE bool is_last_of_block(const GemmParams& p, const RowTile& tile) {
  fence_system();  // the tile, here or at a peer, comes before its count
  return increment_around(p.counters + 4ull * tile.counter, tile.count - 1) == tile.count - 1;
}

// The same; whoever writes the last one also raises the block's signal at every destination, and returns that it has.
DEVICE bool count_tile(const GemmParams& p, const RowTile& tile) {
  if (!is_last_of_block(p, tile)) return false;
  fence_system();
#pragma unroll 1
  for (u32 i = 0; i < p.destination_count; ++i) {
    const u64 signals = ((const Destination*)p.destinations)[tile.destination + i].signals;
    store_relaxed_system(signals + 4ull * tile.signal, p.epoch);
  }
  return true;
}
