// The time of %globaltimer, by which traces go: so that the host can relate it to its own clock and to that of events.
//
// Compiled once (variants.toml) with this defined: ENTRY.

#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(1) ENTRY(const __grid_constant__ ClockParams p) {
  store_release_system_8(p.time, global_timer_ns());
}
