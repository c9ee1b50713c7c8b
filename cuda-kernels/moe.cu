// MOE_ROUTE and MOE_SUM: which experts a token takes, and the sum of their results.
//
//   moe_route_<n>  logits[n_expert, ..] -> dst[2 n_used, ..] (i32): ids of the best by
//                  falling softmax, ties by rising id; then the bits of their f32
//                  weights, divided by their sum when `norm`. One warp a token,
//                  n_expert <= 32 n, n_used <= 64; grid = ceil(tokens / warps a block)
//   moe_sum        y[m, n_used, n], weights[1, n_used, n], b[m, n] or null data
//                  -> dst[m, n] = sum of weights[u] * y[u] in rising u, plus b; f32,
//                  grid and `lanes` as in map.cuh
#include "row_group.cuh"
#include "route.cuh"

template <int N>
__device__ __forceinline__ void moe_route(const View& dst, const View& logits, int n_used, int norm) {
    const long long r = WarpRow::row();
    if (r >= n_rows(logits)) return;
    const RowIndex at = row_index(logits, r);
    if (!is_live(logits, at)) return;
    const float* x = row_of<const float>(logits, at.i1, at.i2, at.i3);
    int* ids = row_of<int>(dst, at.i1, at.i2, at.i3);
    route_row<N>(x, logits.ne[0], n_used, norm, [&](int u, int id, float weight) {
        ids[u] = id;
        ((float*)ids)[n_used + u] = weight;
    });
}

#define MOE_ROUTE(n)                                                                        \
    extern "C" __global__ void moe_route_##n(View dst, View logits, int n_used, int norm) { \
        start();                                                                            \
        moe_route<n>(dst, logits, n_used, norm);                                            \
    }

MOE_ROUTE(4)
MOE_ROUTE(8)
MOE_ROUTE(16)
MOE_ROUTE(32)

extern "C" __global__ void moe_sum(View dst, View y, View weights, View b, int lanes) {
    start();
    constexpr int AHEAD = 8;  // experts whose values are under way at once
    const Place p = place(lanes);
    const int n = dim(dst, 1), m = dst.ne[0], n_used = y.ne[1];
    if (p.row >= n) return;
    const int t = (int)p.row;
    float* out = row_of<float>(dst, t);
    const float* add = b.data ? row_of<const float>(b, t) : nullptr;
    const bool wide = m % 4 == 0 && fours(out) && fours(row_of<const float>(y, 0, t)) && fours(add) &&
                      y.nb[1] % sizeof(Four<float>) == 0;
    for (int c = p.col; c < (wide ? m / 4 : m); c += p.step) {
        Four<float> sum = {};
        for (int u0 = 0; u0 < n_used; u0 += AHEAD) {
            float w[AHEAD];
            Four<float> v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (u0 + i >= n_used) continue;
                w[i] = *row_of<const float>(weights, u0 + i, t);
                const float* x = row_of<const float>(y, u0 + i, t);
                if (wide)
                    v[i] = ((const Four<float>*)x)[c];
                else
                    v[i].v[0] = x[c];
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (u0 + i >= n_used) continue;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (wide || j == 0) sum.v[j] += w[i] * v[i].v[j];
            }
        }
        if (wide) {
            if (add) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum.v[j] += add[4 * c + j];
            }
            ((Four<float>*)out)[c] = sum;
        } else {
            out[c] = add ? sum.v[0] + add[c] : sum.v[0];
        }
    }
}
