// ssm_chunk_scan_<kind>: results of SSM_SCAN in chunks, and the states at the end of
// sequences; ssm_chunk.cu has the operands, the scratch memory and the method.
//   dst   f32 [head_dim, n_head, n], contiguous, 8-byte aligned
//   d, z  the operands of SSM_SCAN, or no data
//   grid = pieces * n_head * ceil(head_dim / P), block 128
//   shared: `Shared` of ssm_chunk.cuh, at most 98 KiB; two blocks a multiprocessor
//
// A chunk passes between two barriers: while its products run, B and C of the next one
// arrive in shared memory and x in registers; between the second barrier and the next
// chunk's first, x and the state are written as f16. A warp keeps a quarter of the state.
#include "ssm_chunk_out.cuh"

// Largest value of this warp's share of the state.
template <class T>
__device__ __forceinline__ float most_of_state(const State<T>& h) {
    float most = 0.f;
#pragma unroll
    for (int m = 0; m < T::MT; m++)
#pragma unroll
        for (int j = 0; j < T::NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(h[m][j][i]));
    return warp_max(most);
}

// The state as the right operand of C h; gives what undoes its lift.
template <class T, class S>
__device__ __forceinline__ float publish(const State<T>& h, const S& sh) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Lift up = lift(fmaxf(fmaxf(sh.most[0], sh.most[1]), fmaxf(sh.most[2], sh.most[3])), TOP_H);
    half* to = sh.h + lane / 4 * T::H_PITCH + warp * T::SLICE + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < T::MT; m++)
#pragma unroll
        for (int j = 0; j < T::NT; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float v0 = h[m][j][2 * e] * up.factor, v1 = h[m][j][2 * e + 1] * up.factor;
                *(uint32_t*)(to + (16 * m + 8 * e) * T::H_PITCH + 8 * j) = pack_half2(v0, v1);
            }
    return up.undo;
}

template <class T>
__device__ __forceinline__ void chunk_scan(const Chunked& k, const View& dst, const View& d, const View& gate) {
    let_next_start();
    const Work<T> work(k);
    wait_for_inputs();
    if (work.chunks == 0) return;
    const int warp = threadIdx.x / WARP;
    const Shared<T, 2> sh;
    sh.copy(0, work.bc);
    Ahead<T> ahead;
    fetch<T>(ahead, work.source, work.piece.first, work.tokens(0), work.piece.chunk);
    const Finish fin(work, dst, d, gate);
    expect_z<T>(fin, work.piece.first, work.tokens(0), work.source.columns);
    State<T> h;
    work.load_first(k, h);
    sh.most[warp] = most_of_state<T>(h);
    stage<T>(ahead, sh);
    __syncthreads();  // `most` is whole
    float h_undo = publish<T>(h, sh);
    // Later rows see more tokens, and warp w of every block runs on the same quarter of a
    // multiprocessor: half of the blocks deal the rows out the other way.
    const int row = 16 * (blockIdx.x < gridDim.x / 2 ? warp : CHUNK_WARPS - 1 - warp);
    const bool last = work.piece.number == work.piece.count - 1;
    for (int i = 0; i < work.chunks; i++) {
        copies_wait<0>();
        __syncthreads();  // B, C, x and h are here
        const bool more = i + 1 < work.chunks;
        if (more) {
            if (T::STAGES == 2) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            fetch<T>(ahead, work.source, work.first(i + 1), work.tokens(i + 1), work.piece.chunk + i + 1);
            expect_z<T>(fin, work.first(i + 1), work.tokens(i + 1), work.source.columns);
        }
        if (row < work.tokens(i)) {
            uint4 c[T::N / 16], m[CHUNK / 16];
            load_c<T>(c, sh.b_of(i) + T::MATRIX, row);
            Scores scores = {};
            multiply_cb<T>(scores, c, sh.b_of(i), row);
            const float2 m_undo = mix(m, scores, sh, row);
            results<T>(m, m_undo, c, sh, OneUndo{h_undo}, row, work.first(i), work.tokens(i), work.source.columns,
                       fin);
        }
        // The state at the end of a piece is known to the next one.
        if (more || last) add_chunk<T>(h, sh, sh.b_of(i), weigh_tokens(sh));
        if (more) sh.most[warp] = most_of_state<T>(h);
        __syncthreads();  // they may be overwritten
        if (more) {
            if (T::STAGES == 1) sh.copy(i + 1, work.bc + (i + 1) * work.bc_stride);
            stage<T>(ahead, sh);
            h_undo = publish<T>(h, sh);
        }
    }
    if (last) work.store_slot(k, h);
}

#define SSM_CHUNK_SCAN(KIND, N, P)                                               \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 2)               \
        ssm_chunk_scan_##KIND(CHUNKED_PARAMS, View dst, View d, View z) {        \
        chunk_scan<Tile<N, P>>(CHUNKED_STRUCT, dst, d, z);                       \
    }

SSM_CHUNK_SCAN(64, 64, 64)
SSM_CHUNK_SCAN(128, 128, 64)
SSM_CHUNK_SCAN(128x80, 128, 80)
SSM_CHUNK_SCAN(256, 256, 32)
