// One line of PTX each: what the kernels need of sm_80 and up.
#pragma once

#include "params.cuh"

#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__

// The same number, of which the compiler knows nothing: what is made of it is made anew each time, and no register is taken in
// between. For warps that have few.
DEVICE u32 afresh(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Blocks of the launch, asked for anew each time: no register is taken in between.
DEVICE u32 blocks_afresh() {
  u32 v;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(v));
  return v;
}

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Copies 16 bytes to shared memory past the L1 cache; fills with zeros if `valid` is false.
DEVICE void copy_async_16(u32 to, const void* from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy_async_4(u32 to, u64 from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

DEVICE void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

DEVICE void store_shared_16(u32 address, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
DEVICE void load_shared_16(u32 (&v)[4], u32 address) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
DEVICE u32 load_shared_4(u32 address) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
DEVICE float load_shared_float(u32 address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
DEVICE void load_shared_floats(float& first, float& second, u32 address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}
DEVICE u16 load_shared_2(u32 address) {
  u16 v;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}
DEVICE void store_shared_4(u32 address, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory"); }

DEVICE void store_shared_2(u32 address, u16 v) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}

// 2^x and 1 / x, to about 2 units in the last place.
DEVICE float power_of_2(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
DEVICE float reciprocal(float x) {
  float v;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}

// Plain global accesses: never through the non-coherent path, since peers write what is read here while a kernel runs.
DEVICE void store_global_16(void* to, const u32 (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
DEVICE void load_global_16(u32 (&v)[4], const void* from) {
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from)
               : "memory");
}
// `otherwise` if `known`; without a branch, over which the compiler would double the loops around it.
DEVICE u32 load_global_4_or(u64 from, u32 known, u32 otherwise) {
  u32 v;
  asm volatile("{ .reg .pred unknown; setp.eq.u32 unknown, %2, 0;\n mov.b32 %0, %3;\n @unknown ld.global.b32 %0, [%1]; }"
               : "=&r"(v)
               : "l"(from), "r"(known), "r"(otherwise)
               : "memory");
  return v;
}
DEVICE u16 load_global_2(const void* from) {
  u16 v;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}
DEVICE u32 load_global(const u16* from) { return load_global_2(from); }
DEVICE u32 load_global(const u8* from) {
  u32 v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
DEVICE void store_global_8(u64 to, u64 v) { asm volatile("st.global.b64 [%0], %1;" ::"l"(to), "l"(v) : "memory"); }
// 0 if there is nothing to load; without a branch.
DEVICE u16 load_global_2_or_0(const void* from, bool valid) {
  u16 v;
  asm volatile("{ .reg .pred valid; setp.ne.u32 valid, %2, 0;\n mov.b16 %0, 0;\n @valid ld.global.b16 %0, [%1]; }"
               : "=&h"(v)
               : "l"(from), "r"((u32)valid)
               : "memory");
  return v;
}
DEVICE void store_global_2(void* to, u16 v) { asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(v) : "memory"); }

// Signals: acquire and release at system scope, because peers are other GPUs, copy engines or the host.
DEVICE u32 load_acquire_system(u64 word) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
  return v;
}
DEVICE u32 load_relaxed_system(u64 word) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
  return v;
}
DEVICE void store_release_system(u64 word, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(v) : "memory");
}
DEVICE void store_release_system_8(u64 word, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(v) : "memory");
}
DEVICE void store_relaxed_system(u64 word, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(v) : "memory");
}
DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE u32 exchange_system(u64 word, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.sys.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(v) : "memory");
  return old;
}

// Past the L1 cache: what other blocks of this launch have written.
DEVICE float load_written_by_blocks(const float* from) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
// Counts up to `last` and wraps around to 0; returns the count before.
DEVICE u32 increment_around(u64 word, u32 last) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(last) : "memory");
  return old;
}

DEVICE u64 global_timer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
DEVICE u32 multiprocessor() {
  u32 v;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(v));
  return v;
}
DEVICE void sleep_ns(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory"); }
