// Which experts a token takes, by one warp.
//
// Sums run in the order of SOFT_MAX and SUM_ROWS of such rows: same bits, same ids.
#pragma once
#include "top_k.cuh"

// Hands (u, id, weight) of the n_used <= 64 best of n_expert <= 32 N logits x to `put`, by
// falling softmax, ties by rising id; weights are divided by their sum when `norm`.
template <int N, class Put>
__device__ __forceinline__ void route_row(const float* x, int n_expert, int n_used, int norm, Put&& put) {
    const int lane = threadIdx.x % WARP;
    float p[N], most = -INFINITY, sum = 0.f;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int c = lane + j * WARP;
        p[j] = c < n_expert ? x[c] : -INFINITY;
        most = fmaxf(most, p[j]);
    }
    most = warp_max(most);
    const bool none = most == -INFINITY;  // all probabilities are 0 then
#pragma unroll
    for (int j = 0; j < N; j++) {
        p[j] = none || lane + j * WARP >= n_expert ? 0.f : expf(p[j] - most);
        sum += p[j];
    }
    sum = warp_sum(sum);
    uint64_t keys[N], last = ALL_KEYS;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int c = lane + j * WARP;
        keys[j] = c < n_expert ? rank_key(none ? 0.f : p[j] / sum, c) : NO_KEY;
    }

    // Lane l holds the l-th best and the (l + 32)-th.
    int first = 0, second = 0;
    for (int u = 0; u < n_used; u++) {
        last = next_key(keys, last);
        if (lane == u) first = index_of(last);
        if (lane + WARP == u) second = index_of(last);
    }
    // Made again by the same steps: a key does not tell one NaN from another.
    auto weight = [&](int u, int id) { return none || u >= n_used ? 0.f : expf(x[id] - most) / sum; };
    const float a = weight(lane, first), b = weight(lane + WARP, second);
    const float total = (float)warp_sum((double)a + (double)b);
    if (lane < n_used) put(lane, first, norm ? a / total : a);
    if (lane + WARP < n_used) put(lane + WARP, second, norm ? b / total : b);
}
