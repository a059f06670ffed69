// One line of PTX each: what the kernels need of sm_90a. Barriers, the tensor copy engine, warpgroups.
#pragma once

#include "ptx.cuh"

// Barriers in shared memory.
DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// An arrival, when all that this thread has copied asynchronously is there.
DEVICE void barrier_arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// The same barrier of another block of the cluster.
DEVICE void barrier_arrive_at(u32 barrier, u32 block) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(block)
      : "memory");
}
// Waits until the phase of that parity has completed: 1 passes at once on a fresh barrier.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over: }" ::"r"(barrier), "r"(parity)
      : "memory");
}

// Kernels that follow each other on a stream: the next one's blocks may come as soon as SMs are free, and wait themselves until
// all that this one writes is there.
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// One lane of the warp, all of which ask: the assembler then knows that there is one, and need not look for others that might
// give the copy engine other addresses.
DEVICE bool elect_one() {
  u32 elected;
  asm volatile(
      "{ .reg .pred elected; elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected; }"
      : "=r"(elected));
  return elected != 0;
}

// Blocks of a cluster.
DEVICE u32 cluster_rank() {
  u32 v;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
  return v;
}
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// A place in a ring, and the parity of how often it has been around.
template <int kPlaces>
struct Ring {
  u32 place = 0, lap = 0;
  DEVICE_METHOD void next() {
    if (++place == kPlaces) place = 0, lap ^= 1;
  }
};

template <int kId, int kThreads>
DEVICE void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// The same, and whether any thread says so.
template <int kId, int kThreads>
DEVICE bool named_barrier_or(bool says) {
  u32 any;
  asm volatile(
      "{ .reg .pred in, out; setp.ne.u32 in, %1, 0;\n"
      "bar.red.or.pred out, %2, %3, in;\n"
      "selp.u32 %0, 1, 0, out; }"
      : "=r"(any)
      : "r"((u32)says), "n"(kId), "n"(kThreads)
      : "memory");
  return any != 0;
}

// The tensor copy engine: boxes of a matrix, x along its rows, to and from shared memory.
DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
DEVICE void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Of all layers of a matrix, one behind the other.
DEVICE void load_layers(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, 0}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// To the same place, and the same barrier, of both blocks of a cluster.
DEVICE void load_box_to_both(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
      "[%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((u16)3)
      : "memory");
}
DEVICE void store_box(const TensorMap* map, u32 from, u32 x, u32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(from)
               : "memory");
}
// Bytes that follow each other: addresses and sizes are multiples of 16.
DEVICE void load_bytes(u32 to, u64 from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
DEVICE void store_bytes(u64 to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
DEVICE void store_box_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the last `kPending` groups of stores have read their shared memory.
template <int kPending>
DEVICE void store_box_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// All stores have been written.
DEVICE void store_box_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What other engines wrote to global memory before an acquired signal, the copy engine may now read.
DEVICE void fence_global_to_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// What this thread wrote to shared memory, the copy engine may now read.
DEVICE void fence_shared_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Warpgroups.
template <int kRegisters>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accumulators across the fences around a multiply that is still running.
template <int kCount>
DEVICE void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Four 8x8 blocks to shared memory; lane l gives the address of row l % 8 of block l / 8.
DEVICE void store_matrices(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
// A 128-byte swizzled, K-major tile in shared memory, as wgmma takes it: rows of 128 bytes, eight rows to 1024 bytes. The
// address is in units of 16 bytes, as are steps in the descriptor.
DEVICE u64 tile_descriptor(u32 address_16) { return (u64)((1u << 30) | 64) << 32 | address_16; }
