// When a GEMM's units of work (tiles, or parts of split ones) happen, by %globaltimer: in kernels compiled with TRACE.
// Without it everything here is empty, and a kernel is the same to the last instruction. The records are mirrored in
// crates/flux-launch/src/trace.rs.
#pragma once

#include "ptx.cuh"

// The 64-bit words of a unit's record. Of two, each warpgroup that multiplies has one; other kernels write the first.
enum TraceWord {
  kTraceGateBegin = 0,    // somebody begins to wait for the gate ...
  kTraceGateEnd = 1,      //   and has passed it
  kTraceFirstStage = 2,   // [2] the first block of K is there
  kTraceMultiplied = 4,   // [2] the last has been multiplied
  kTraceHandedOver = 6,   // [2] Hopper: who multiplies may begin the next unit
  kTraceStored = 8,       // [2] the tile has left (ReduceScatter: has been written)
  kTraceSignal = 10,      // the signal of the block of rows is up; 0 if another tile raises it
  kTraceUnit = 11,        // part << 32 | entry of the order
  kTracePlace = 12,       // SM << 32 | block
  kTraceWords = 13,
};

// What a traced kernel takes: the ordinary parameters, and where the records of its units go.
#ifdef TRACE
template <typename Params>
struct Traced : Params {
  u64 records;  // u64[units][kTraceWords]
};
#else
template <typename Params>
using Traced = Params;
#endif

// Writes a word of the record of unit `index`. `p` is the base of a Traced<Params>.
template <typename Params>
DEVICE void trace_value(const Params& p, u32 index, u32 word, u64 value) {
#ifdef TRACE
  const u64 records = static_cast<const Traced<Params>&>(p).records;
  store_global_8(records + 8 * ((u64)index * kTraceWords + afresh(word)), value);
#endif
}

// Writes the time.
template <typename Params>
DEVICE void trace(const Params& p, u32 index, u32 word) {
#ifdef TRACE
  trace_value(p, index, word, global_timer_ns());
#endif
}

// A unit begins: which it is, and where; if `gated`, with the wait for its gate. One thread, before anybody else writes to
// its record's signal.
template <typename Params>
DEVICE void trace_unit(const Params& p, u32 index, u32 entry, u32 part, bool gated) {
#ifdef TRACE
  trace_value(p, index, kTraceSignal, 0);
  trace_value(p, index, kTraceUnit, (u64)part << 32 | entry);
  trace_value(p, index, kTracePlace, (u64)multiprocessor() << 32 | blockIdx.x);
  if (gated) trace(p, index, kTraceGateBegin);
#endif
}
