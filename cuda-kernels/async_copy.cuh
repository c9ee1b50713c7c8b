// Copies from memory to shared memory that go on in the background.
#pragma once
#include "common.cuh"

// Start a copy of 4 or 16 bytes.
__device__ __forceinline__ void stage_4(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void stage_16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

// Starts a copy of 16 bytes to shared memory; zeros instead when not `present`, and
// then `src` is not read.
__device__ __forceinline__ void copy_async(void* dst, const void* src, bool present) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(dst);
    const int n_bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src), "r"(n_bytes) : "memory");
}

// Closes a group of copies.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are still under way.
template <int N>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
