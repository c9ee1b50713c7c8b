// Pieces of mul_mat_vec_cluster.cu: blocks of a cluster, and groups of weights as
// `add_group` (int_tokens.cuh) reads them from shared memory.
#pragma once
#include "int_tokens.cuh"
#include "ring.cuh"

__device__ __forceinline__ int rank_in_cluster() {
    int r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

// Bytes of dynamic shared memory of this launch.
__device__ __forceinline__ uint32_t dynamic_bytes() {
    uint32_t r;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(r));
    return r;
}

// Address in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t at, int rank) {
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
    return r;
}

// All blocks of a cluster have come so far; what `barriers_ready` says is seen then, and no
// other writes.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Sends N floats (1, 2 or 4) to a block of the cluster, whose barrier counts their bytes:
// who waits there sees them.
template <int N>
__device__ __forceinline__ void send(uint32_t to, const float* v, uint32_t barrier) {
    if constexpr (N == 4)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                     "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
                     : "memory");
    else if constexpr (N == 2)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                     "f"(v[0]), "f"(v[1]), "r"(barrier)
                     : "memory");
    else
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v[0]),
                     "r"(barrier)
                     : "memory");
}

// Scales of a group of Q4_K, taken apart once for the four lanes that need them.
struct Scales {
    PairScales of[2][GROUP_UNITS / 2][TILE_ROWS / 2];  // of rows r and r + 8
};

// Q4_K::Step, of which nibbles and scales stay in shared memory until they are used.
struct Q4Ahead {
    const uint4* nibbles;
    const PairScales* scales;
    uint32_t d[2];
    __device__ __forceinline__ Q4Ahead(const uint8_t* group, Scales& to, int lane)
        : nibbles((const uint4*)group + lane), scales(&to.of[0][0][lane / 4]) {
        const int r = lane / 4, c = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 head = ((const uint4*)(group + Q4_K::HEADS))[r + 8 * h];
            uint32_t six = c == 0 ? head.y : c == 1 ? head.z : head.w;
            if (c == 3) six = last_six_bits(head.y, head.z, head.w);
            to.of[h][c][r] = PairScales(six);
            d[h] = head.x;
        }
        __syncwarp();
    }
};

template <int P>
__device__ __forceinline__ uint4 q4_nibbles(const Q4Ahead& st) {
    return st.nibbles[P * WARP];
}

__device__ __forceinline__ uint32_t q4_d(const Q4Ahead& st, int h) { return st.d[h]; }

template <int P>
__device__ __forceinline__ PairScales q4_scales(const Q4Ahead& st, int h) {
    return st.scales[(h * GROUP_UNITS / 2 + P) * (TILE_ROWS / 2)];
}

// Q6_K::Step, of which nibbles and upper bits stay in shared memory until they are used.
struct Q6Ahead {
    const uint8_t *low, *upper;
    uint4 scales;
    uint32_t d;
    __device__ __forceinline__ Q6Ahead(const uint8_t* group, int lane)
        : low(group + 16 * lane), upper(group + Q6_K::UPPER + 16 * lane),
          scales(((const uint4*)(group + Q6_K::SCALES))[lane / 4 * 2 + lane % 2]),
          d(((const uint32_t*)(group + Q6_K::D))[lane / 4]) {}
};

template <int U>
__device__ __forceinline__ uint2 q6_low(const Q6Ahead& st) {
    return *(const uint2*)(st.low + U / 2 * 512 + U % 2 * 8);
}

template <int U>
__device__ __forceinline__ uint32_t q6_upper(const Q6Ahead& st) {
    return *(const uint32_t*)(st.upper + U / 4 * 512 + U % 4 * 4);
}
