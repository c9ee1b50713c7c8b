// As int_product.cuh for 4, 8 or 16 tokens at once: columns of a product are tokens, and a
// lane keeps apart what four lanes have of one token there, so that every float is the
// same and is added in the same order.
#pragma once
#include "int_product.cuh"

template <int NT>
struct __align__(16) XGroup {
    static_assert(NT % 4 == 0, "columns are four tokens, hi and lo");
    static constexpr int G = NT / 4;
    // Of units 2 p and 2 p + 1, tokens 4 g .. 4 g + 3: what lane l has of `b` in a product
    // whose column is l / 4: token 4 g + l / 8, hi (l / 4 even) or lo.
    uint2 digits[GROUP_UNITS / 2][G][WARP][2];
    float sums[NT][GROUP_UNITS];  // of the integers of a unit, times scale
    float scale[NT];

    __device__ __forceinline__ void put(int u, int t, int c, uint2 hi, uint2 lo) {
        auto& to = digits[u / 2][t / 4];
        to[t % 4 * 8 + c][u % 2] = hi;
        to[t % 4 * 8 + 4 + c][u % 2] = lo;
    }
};

// What a warp has of 16 rows and NT tokens, in VALUES sums a lane. `each_sum` hands
// (first row, token, sums) to `put` for pieces of PIECE rows, eight rows apart.
template <class T, int NT>
struct TokenSums;

// Lane (r, c) has tokens c + 4 g of rows r and r + 8.
template <int NT>
struct TokenSums<Q4_K, NT> {
    static constexpr int G = NT / 4, VALUES = 2 * G, PIECE = 2;
    float v[G][2][4] = {};  // by pairs of units

    __device__ __forceinline__ void values(float to[VALUES], int) const {
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const auto& s = v[i / 2][i % 2];
            to[i] = (s[0] + s[1]) + (s[2] + s[3]);
        }
    }

    template <class Put>
    static __device__ __forceinline__ void each_sum(const float values[VALUES], int lane, Put&& put) {
#pragma unroll
        for (int g = 0; g < G; g++) put(lane / 4, lane % 4 + 4 * g, values + 2 * g);
    }
};

// The float of `pair_sum` (int_product.cuh) for row h of two products. There hi and lo are
// multiplied by their scales apart; here first put together: as |256 hi + lo| is at most
// 32 * 15 * 128.5 * 256 and twice 63 times that less than 2^31, this is the same integer,
// and it is rounded once as there.
__device__ __forceinline__ float pair_sum(const PairScales& six, float2 d, float x_scale, float2 unit_sums,
                                          const int even[4], const int odd[4], int h) {
    const int p = six.s[0] * (256 * even[2 * h] + even[2 * h + 1]) + six.s[1] * (256 * odd[2 * h] + odd[2 * h + 1]);
    const float codes = d.x * (x_scale * (float)p);
    return fmaf(-d.y, fmaf(six.m[0], unit_sums.x, six.m[1] * unit_sums.y), codes);
}

// What `add_group` asks of a group of Q4_K: nibbles of units 2 p and 2 p + 1, d and dmin of
// row r or r + 8, scales of both units.
template <int P>
__device__ __forceinline__ uint4 q4_nibbles(const Q4_K::Step& st) {
    return st.q[P];
}

__device__ __forceinline__ uint32_t q4_d(const Q4_K::Step& st, int h) { return st.head[h].x; }

template <int P>
__device__ __forceinline__ PairScales q4_scales(const Q4_K::Step& st, int h) {
    const uint4 head = st.head[h];
    if (P == 3) return PairScales(last_six_bits(head.y, head.z, head.w));
    return PairScales(P == 0 ? head.y : P == 1 ? head.z : head.w);
}

template <int NT, class Step>
__device__ __forceinline__ void add_group(TokenSums<Q4_K, NT>& sums, const Step& st, const XGroup<NT>& x,
                                          const XGroup<NT>&, int lane) {
    const int c = lane % 4;
    const float2 d[2] = {__half22float2(as_half2(q4_d(st, 0))), __half22float2(as_half2(q4_d(st, 1)))};
    each<GROUP_UNITS / 2>([&](auto pair) {
        constexpr int P = decltype(pair)::value;
        const PairScales scales[2] = {q4_scales<P>(st, 0), q4_scales<P>(st, 1)};
        const uint4 nibbles = q4_nibbles<P>(st);
        uint32_t a[2][4];
        each<4>([&](auto at) {
            constexpr int I = decltype(at)::value;
            const uint32_t w = word<I>(nibbles);
            a[I / 2][I % 2] = w & LOW_NIBBLES;
            a[I / 2][2 + I % 2] = w >> 4 & LOW_NIBBLES;
        });
#pragma unroll
        for (int g = 0; g < NT / 4; g++) {
            const uint4 b = *(const uint4*)x.digits[P][g][lane];
            int even[4] = {}, odd[4] = {};
            mma_bytes(even, a[0], make_uint2(b.x, b.y));
            mma_bytes(odd, a[1], make_uint2(b.z, b.w));
            const float2 unit_sums = *(const float2*)&x.sums[c + 4 * g][2 * P];
#pragma unroll
            for (int h = 0; h < 2; h++)
                sums.v[g][h][P] += pair_sum(scales[h], d[h], x.scale[c + 4 * g], unit_sums, even, odd, h);
        }
    });
}

// Lane (r, c) has half c % 2 of units, of tokens c / 2 + 2 g.
template <int NT>
struct TokenSums<Q6_K, NT> {
    static constexpr int G = NT / 2, VALUES = G, PIECE = 1;
    float v[G][2][2] = {};  // by the parity of units

    __device__ __forceinline__ void values(float to[VALUES], int lane) const {
#pragma unroll
        for (int g = 0; g < G; g++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float even = v[g][h][0] + __shfl_xor_sync(ALL_LANES, v[g][h][0], 1);
                const float odd = v[g][h][1] + __shfl_xor_sync(ALL_LANES, v[g][h][1], 1);
                if (lane % 2 == h) to[g] = even + odd;
            }
        }
    }

    template <class Put>
    static __device__ __forceinline__ void each_sum(const float values[VALUES], int lane, Put&& put) {
#pragma unroll
        for (int g = 0; g < G; g++) put(lane / 4 + lane % 2 * 8, lane % 4 / 2 + 2 * g, values + g);
    }
};

template <int NT, class Step>
__device__ __forceinline__ void add_group(TokenSums<Q6_K, NT>& sums, const Step& st, const XGroup<NT>& x,
                                          const XGroup<NT>& zeros, int lane) {
    constexpr uint32_t SIGN = 0x80808080;
    constexpr int G = NT / 2;
    const int c = lane % 4;
    // Column lane / 4 is token lane / 16 of two, half lane / 8 % 2 of a unit and a digit.
    const XGroup<NT>& mine = c / 2 == lane / 8 % 2 ? x : zeros;
    const uint2* from = mine.digits[0][0][lane / 16 * 8 + lane / 4 % 2 * 4 + c];
    const uint32_t scales[4] = {st.scales.x ^ SIGN, st.scales.y ^ SIGN, st.scales.z ^ SIGN, st.scales.w ^ SIGN};
    const float2 d = __half22float2(as_half2(st.d));
    each<2>([&](auto parity) {
        constexpr int ODD = decltype(parity)::value;
        int total[G][4] = {};
        __syncwarp();  // one parity's totals at a time: registers
        each<GROUP_UNITS / 2>([&](auto pair) {
            constexpr int P = decltype(pair)::value, U = 2 * P + ODD;
            uint32_t a[4];
            q6_bytes(q6_low<U>(st), q6_upper<U>(st), a);
            const int s0 = signed_byte<U % 4>(scales[U / 4]), s1 = signed_byte<U % 4>(scales[2 + U / 4]);
#pragma unroll
            for (int g = 0; g < G; g++) {
                int part[4] = {};
                mma_bytes(part, a, from[((P * (NT / 4) + g / 2) * WARP + g % 2 * 16) * 2 + ODD]);
                int(&t)[4] = total[g];
                t[0] += s0 * part[0], t[1] += s0 * part[1];
                t[2] += s1 * part[2], t[3] += s1 * part[3];
            }
        });
#pragma unroll
        for (int g = 0; g < G; g++) {
            const auto& t = total[g];
            const float scale = x.scale[c / 2 + 2 * g];
            sums.v[g][0][ODD] += q6_sum(d.x, scale, t[0], t[1]);
            sums.v[g][1][ODD] += q6_sum(d.y, scale, t[2], t[3]);
        }
    });
}
