// As int_product.cuh for 4 or 8 tokens at once: columns of a product are tokens, and a
// lane keeps apart what four lanes have of one token there, so that every float is the
// same and is added in the same order.
#pragma once
#include "int_product.cuh"

template <class T, int NT>
struct TokenSums;

// Lane (r, c) has tokens c + 4 g of rows r and r + 8.
template <int NT>
struct TokenSums<Q4_K, NT> {
    static constexpr int G = NT / 4;
    float v[G][2][4] = {};  // by pairs of units

    template <class Put>
    __device__ __forceinline__ void each_sum(int lane, Put&& put) const {
#pragma unroll
        for (int g = 0; g < G; g++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const auto& s = v[g][h];
                put(lane / 4 + 8 * h, lane % 4 + 4 * g, (s[0] + s[1]) + (s[2] + s[3]));
            }
        }
    }
};

template <int NT>
__device__ __forceinline__ void add_group(TokenSums<Q4_K, NT>& sums, const Q4_K::Step& st, const XGroup<NT>& x,
                                          const XGroup<NT>&, int lane) {
    constexpr int G = NT / 4;
    const int c = lane % 4;
    const uint2* from = &x.digits[0][lane / 8][lane / 4 % 2][c];
    const float2 d[2] = {__half22float2(as_half2(st.head[0].x)), __half22float2(as_half2(st.head[1].x))};
    float scale[G];
#pragma unroll
    for (int g = 0; g < G; g++) scale[g] = x.scale[c + 4 * g];
    each<GROUP_UNITS / 2>([&](auto pair) {
        constexpr int P = decltype(pair)::value;
        uint32_t six[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 head = st.head[h];
            six[h] = P == 0 ? head.y : P == 1 ? head.z : head.w;
            if (P == 3) six[h] = last_six_bits(head.y, head.z, head.w);
        }
        const PairScales scales[2] = {PairScales(six[0]), PairScales(six[1])};
#pragma unroll
        for (int g = 0; g < G; g++) {
            int low[2][4] = {}, high[2][4] = {};
            each<2>([&](auto parity) {
                constexpr int I = decltype(parity)::value, U = 2 * P + I;
                const uint32_t w0 = word<I * 2>(st.q[P]), w1 = word<I * 2 + 1>(st.q[P]);
                const uint2 b = from[(U * NT + 4 * g) * 8];
                mma_codes(low[I], w0 & LOW_NIBBLES, w1 & LOW_NIBBLES, b.x);
                mma_codes(high[I], w0 & HIGH_NIBBLES, w1 & HIGH_NIBBLES, b.y);
            });
            const float2 unit_sums = *(const float2*)&x.sums[c + 4 * g][2 * P];
#pragma unroll
            for (int h = 0; h < 2; h++)
                sums.v[g][h][P] += pair_sum(scales[h], d[h], scale[g], unit_sums, low, high, h);
        }
    });
}

// Lane (r, c) has half c % 2 of units, of tokens c / 2 + 2 g.
template <int NT>
struct TokenSums<Q6_K, NT> {
    static constexpr int G = NT / 2;
    float v[G][2][2] = {};  // by the parity of units

    template <class Put>
    __device__ __forceinline__ void each_sum(int lane, Put&& put) const {
        const int r = lane / 4, c = lane % 4;
#pragma unroll
        for (int g = 0; g < G; g++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float even = v[g][h][0] + __shfl_xor_sync(ALL_LANES, v[g][h][0], 1);
                const float odd = v[g][h][1] + __shfl_xor_sync(ALL_LANES, v[g][h][1], 1);
                if (c % 2 == h) put(r + 8 * h, c / 2 + 2 * g, even + odd);
            }
        }
    }
};

template <int NT>
__device__ __forceinline__ void add_group(TokenSums<Q6_K, NT>& sums, const Q6_K::Step& st, const XGroup<NT>& x,
                                          const XGroup<NT>& zeros, int lane) {
    constexpr uint32_t SIGN = 0x80808080;
    constexpr int G = NT / 2, N = 2;  // pairs of tokens at a time: as the registers allow
    const int c = lane % 4;
    const XGroup<NT>& mine = c / 2 == lane / 8 % 2 ? x : zeros;
    const uint2* from = &mine.digits[0][lane / 16][lane / 4 % 2][c];
    const uint32_t scales[4] = {st.scales.x ^ SIGN, st.scales.y ^ SIGN, st.scales.z ^ SIGN, st.scales.w ^ SIGN};
    const float2 d = __half22float2(as_half2(st.d));
#pragma unroll
    for (int g0 = 0; g0 < G; g0 += N) {
        int total[N][2][4] = {};
        each<GROUP_UNITS>([&](auto unit) {
            constexpr int U = decltype(unit)::value;
            uint32_t a[4];
            q6_bytes<U>(st, a);
            const int s0 = signed_byte<U % 4>(scales[U / 4]), s1 = signed_byte<U % 4>(scales[2 + U / 4]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                int part[4] = {};
                mma_bytes(part, a, from[(U * NT + 2 * (g0 + i)) * 8]);
                int(&t)[4] = total[i][U % 2];
                t[0] += s0 * part[0], t[1] += s0 * part[1];
                t[2] += s1 * part[2], t[3] += s1 * part[3];
            }
        });
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float scale = x.scale[c / 2 + 2 * (g0 + i)];
#pragma unroll
            for (int parity = 0; parity < 2; parity++) {
                const auto& t = total[i][parity];
                sums.v[g0 + i][0][parity] += q6_sum(d.x, scale, t[0], t[1]);
                sums.v[g0 + i][1][parity] += q6_sum(d.y, scale, t[2], t[3]);
            }
        }
    }
}
