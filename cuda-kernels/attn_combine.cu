// attn_combine: dst[:, head, t] from the splits' shares, in split order.
//   dst f32 [head_dim_v * n_head, n], n live; cell_pos i32 [cells], cells in use live
//   parts f32x2 [n_split, n_head, n], part_out f32 [head_dim_v, n_split, n_head, n]: see
//   attn.cuh; only the splits that had cells are read, n_split <= 128
//   grid = (n_head, n), block 128
#include "attn.cuh"

extern "C" __global__ void __launch_bounds__(ATTN_THREADS)
    attn_combine(View dst, View q, View pos, View cell_pos, int head_dim_v, int n_split, const float2* parts,
                 const float* part_out) {
    let_next_start();
    __shared__ float weight[ATTN_THREADS];
    const int token = blockIdx.y, head = blockIdx.x, i = threadIdx.x;
    const int n_live = min(dim(q, 2), dim(pos, 0));
    const int n_active = min(n_split, (dim(cell_pos, 0) + SPLIT_CELLS - 1) / SPLIT_CELLS);
    wait_for_inputs();
    if (token >= n_live) return;
    const size_t first = ((size_t)token * gridDim.x + head) * n_split;
    const float2 part = i < n_active ? parts[first + i] : make_float2(-INFINITY, 0.f);
    const float top = block_max(part.x);
    // -1 marks a split that saw nothing, whose part_out was not written.
    const float mine = part.y == 0.f ? -1.f : exp2_fast(part.x - finite_max(top));
    weight[i] = mine;
    const float sum = block_sum(part.y == 0.f ? 0.f : mine * part.y);  // its barriers publish `weight`
    const float scale = sum == 0.f ? 0.f : 1.f / sum;
    float* out = row_of<float>(dst, token) + (size_t)head * head_dim_v;
    for (int d = i; d < head_dim_v; d += ATTN_THREADS) {
        float x = 0.f;
#pragma unroll 4
        for (int s = 0; s < n_active; s++) {
            if (weight[s] == -1.f) continue;
            x += weight[s] * part_out[(first + s) * head_dim_v + d];
        }
        out[d] = x * scale;
    }
}
