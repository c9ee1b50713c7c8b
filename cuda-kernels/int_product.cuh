// Products of Q4_K and Q6_K codes with x as 16-bit integers, on tensor cores.
//
// A group of 256 values of x becomes round(x / s) with s = max|x| / 32512, so its rounding
// is at most 2^-16 of its largest value: the product of a group is closer to the exact one
// than with x as halves, and nothing of a weight is rounded. Each integer is two signed
// bytes, 256 hi + lo, which are two columns of an m16n8k32 product of bytes. Sums of a
// group are exact integers; the groups of a row are added in f32 in an order that depends
// on k alone (`CLASSES`), so a token gets the same bits in every kernel, alone or not.
//
// A group of x in shared memory: `XGroup`, here of one token, in int_tokens.cuh of more.
#pragma once
#include "mma.cuh"
#include "quant/q4_k.cuh"
#include "quant/q6_k.cuh"

constexpr int X_GROUP = 256, GROUP_UNITS = X_GROUP / UNIT;
// Group g of a row belongs to class g % 8; a class adds its groups in order, then
// classes c and c + 4 are added, c and c + 2, c and c + 1.
constexpr int CLASSES = 8;
constexpr int MOST_GROUPS = 128;  // of a row
constexpr float X_LEVELS = 32512.f;  // 127 * 256: hi stays within a signed byte

template <int NT>
struct XGroup;

template <>
struct __align__(16) XGroup<1> {
    // Of unit u: hi, then lo; lane c's eight values as the words of codes have them:
    // 0 4 1 5, then 2 6 3 7.
    uint2 digits[GROUP_UNITS][2][4];
    float sums[1][GROUP_UNITS];  // of the integers of a unit, times scale
    float scale[1];

    __device__ __forceinline__ void put(int u, int, int c, uint2 hi, uint2 lo) {
        digits[u][0][c] = hi;
        digits[u][1][c] = lo;
    }
};

// Byte AT of a word with its sign.
template <int AT>
__device__ __forceinline__ int signed_byte(uint32_t w) {
    int r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(w), "n"(AT | (AT | 8) * 0x1110));
    return r;
}

// Lane's eight values of a group at `from`, past the nearest cache: others wrote them.
__device__ __forceinline__ void load_eight(float v[8], const float* from, int lane) {
    from += 8 * lane;
    if (((uintptr_t)from & 15) == 0) {
        *(float4*)v = __ldcg((const float4*)from);
        *(float4*)(v + 4) = __ldcg((const float4*)from + 1);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __ldcg(from + i);
    }
}

__device__ __forceinline__ float sum_of_squares(const float v[8]) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[i] * v[i];
    return warp_sum(sum);
}

// Puts a group of x into slot t; one warp, of which each lane has eight values.
template <int NT>
__device__ __forceinline__ void stage_group(XGroup<NT>& to, int t, const float v[8], int lane) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) bits = max(bits, __float_as_uint(fabsf(v[i])));
    const float top = __uint_as_float(__reduce_max_sync(ALL_LANES, bits));  // NaN is above all
    // What is smaller than this is nothing beside an f32 sum of anything else.
    const float inverse = top < 1e-30f ? 0.f : __fdividef(X_LEVELS, top);
    const float scale = top * (1.f / X_LEVELS);
    // 1.5 * 2^23: the integer lies in the low bits, plus 2^15 so that none is negative.
    constexpr float MAGIC_F = 12582912.f + 32768.f;
    constexpr uint32_t MAGIC_BITS = 0x4b408000;
    uint32_t q[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        q[i] = __float_as_uint(fmaf(v[i], inverse, MAGIC_F));
        sum += q[i];
    }
    sum -= 8 * MAGIC_BITS;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    const int u = lane / 4, c = lane % 4;
    uint32_t hi[2], lo[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // Values 0, 4 and 1, 5 or 2, 6 and 3, 7, 16 bits each; hi is what 128 more carries.
        const uint32_t p = __byte_perm(q[2 * i], q[2 * i + 4], 0x5410);
        const uint32_t r = __byte_perm(q[2 * i + 1], q[2 * i + 5], 0x5410);
        lo[i] = __byte_perm(p, r, 0x6420);
        hi[i] = __byte_perm(p + 0x00800080, r + 0x00800080, 0x7531) ^ 0x80808080;
    }
    to.put(u, t, c, make_uint2(hi[0], hi[1]), make_uint2(lo[0], lo[1]));
    if (c == 0) to.sums[t][u] = (float)(int)sum * scale;
    if (lane == 0) to.scale[t] = scale;
}

// c[16 rows, 8 columns] += a[16, 16] * b[16, 8] with codes of 0..255 (PTX ISA, m16n8k16).
__device__ __forceinline__ void mma_codes(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// c[16 rows, 8 columns] += a[16, 32] * b[32, 8], signed bytes (PTX ISA, m16n8k32).
__device__ __forceinline__ void mma_bytes(int c[4], const uint32_t a[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// A group of a row tile in registers, from shared memory.
__device__ __forceinline__ Q4_K::Step q4_step(const uint8_t* group, int lane) {
    Q4_K::Step st;
#pragma unroll
    for (int i = 0; i < 4; i++) st.q[i] = ((const uint4*)group)[32 * i + lane];
#pragma unroll
    for (int i = 0; i < 2; i++) st.head[i] = ((const uint4*)(group + Q4_K::HEADS))[lane / 4 + 8 * i];
    return st;
}

// Lane c's half of units is c % 2: its scales.
__device__ __forceinline__ Q6_K::Step q6_step(const uint8_t* group, int lane) {
    Q6_K::Step st;
#pragma unroll
    for (int i = 0; i < 4; i++) st.low[i] = ((const uint4*)group)[32 * i + lane];
#pragma unroll
    for (int i = 0; i < 2; i++) st.upper[i] = ((const uint4*)(group + Q6_K::UPPER))[32 * i + lane];
    st.scales = ((const uint4*)(group + Q6_K::SCALES))[lane / 4 * 2 + lane % 2];
    st.d = ((const uint32_t*)(group + Q6_K::D))[lane / 4];
    return st;
}

// The same from memory; `tile` is the row tile's first byte.
template <class T>
__device__ __forceinline__ void load_group(typename T::Step& st, const uint8_t* tile, int g, int n_groups, int lane) {
    T::load(st, tile, g, n_groups * GROUP_UNITS, lane);
    // `add_group` wants the scales of half c % 2 in lane c, mma those of half c / 2.
    if constexpr (T::ID == Q6_K::ID)
        st.scales = stream<uint4>(tile + (size_t)g * T::GROUP + T::SCALES, lane / 4 * 2 + lane % 2);
}

// What a warp has of 16 rows and one token: lane (r, c) = lane / 4, lane % 4 has a share of
// rows r and r + 8. The eight columns of a product are four shares times hi and lo: the
// columns of the others are fed zeros, so that a product leaves every lane the integers
// of its own share, for which it alone needs scales.
struct OneSum {
    float v[2] = {};

    // Hands (row 0..15, token, sum) to `put`, each by one lane.
    template <class Put>
    __device__ __forceinline__ void each_sum(int lane, Put&& put) const {
        const int r = lane / 4, c = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s = v[h] + __shfl_xor_sync(ALL_LANES, v[h], 1);
            s += __shfl_xor_sync(ALL_LANES, s, 2);
            if (c == h) put(r + 8 * h, 0, s);
        }
    }
};

// s and m of two neighbouring units of Q4_K, for one row.
struct __align__(16) PairScales {
    int s[2];
    float m[2];
    __device__ __forceinline__ explicit PairScales(uint32_t six)
        : s{(int)(six & 63), (int)(six >> 6 & 63)}, m{(float)(six >> 16 & 63), (float)(six >> 22 & 63)} {}
};

// What two units add to a row: the integers of their low and high nibbles (those 16 times
// too large), hi and lo of x.
__device__ __forceinline__ float pair_sum(const PairScales& six, float2 d, float x_scale, float2 unit_sums,
                                          const int (&low)[2][4], const int (&high)[2][4], int h) {
    int p[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int even = low[0][2 * h + j] * 16 + high[0][2 * h + j];
        const int odd = low[1][2 * h + j] * 16 + high[1][2 * h + j];
        p[j] = six.s[0] * even + six.s[1] * odd;
    }
    const float codes = d.x * (0.0625f * x_scale * fmaf((float)p[0], 256.f, (float)p[1]));
    return fmaf(-d.y, fmaf(six.m[0], unit_sums.x, six.m[1] * unit_sums.y), codes);
}

constexpr uint32_t LOW_NIBBLES = 0x0f0f0f0f, HIGH_NIBBLES = 0xf0f0f0f0;

// Lane c has units 2 c and 2 c + 1.
__device__ __forceinline__ void add_group(OneSum& sum, const Q4_K::Step& st, const XGroup<1>& x,
                                          const XGroup<1>& zeros, int lane) {
    const int c = lane % 4, share = lane / 8, digit = lane / 4 % 2;
    const uint2* from[4];
#pragma unroll
    for (int i = 0; i < 4; i++) from[i] = &(i == share ? x : zeros).digits[0][digit][c];
    int low[2][4] = {}, high[2][4] = {};  // by the parity of units
    each<GROUP_UNITS>([&](auto unit) {
        constexpr int U = decltype(unit)::value;
        const uint32_t w0 = word<U % 2 * 2>(st.q[U / 2]), w1 = word<U % 2 * 2 + 1>(st.q[U / 2]);
        const uint2 b = from[U / 2][U * 8];
        mma_codes(low[U % 2], w0 & LOW_NIBBLES, w1 & LOW_NIBBLES, b.x);
        mma_codes(high[U % 2], w0 & HIGH_NIBBLES, w1 & HIGH_NIBBLES, b.y);
    });
    const float2 unit_sums = *(const float2*)&x.sums[0][2 * c];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 head = st.head[h];
        uint32_t six = c == 0 ? head.y : c == 1 ? head.z : head.w;
        if (c == 3) six = last_six_bits(head.y, head.z, head.w);
        sum.v[h] += pair_sum(PairScales(six), __half22float2(as_half2(head.x)), x.scale[0], unit_sums, low, high, h);
    }
}

// The signed bytes of a unit of Q6_K as `a` of mma_bytes: four times the codes, six bits at
// the top of a byte with 32 taken off. `low`: nibbles of rows r and r + 8.
__device__ __forceinline__ void q6_bytes(uint2 low, uint32_t upper, uint32_t a[4]) {
    constexpr uint32_t LOW = 0x3c3c3c3c, UP = 0xc0c0c0c0, SIGN = 0x80808080;
    each<2>([&](auto half) {
        constexpr int H = decltype(half)::value;
        const uint32_t w = H ? low.y : low.x;
        a[H] = (w << 2 & LOW) | ((upper << (6 - 2 * H) & UP) ^ SIGN);
        a[2 + H] = (w >> 2 & LOW) | ((upper << (2 - 2 * H) & UP) ^ SIGN);
    });
}

// Words of unit U.
template <int U>
__device__ __forceinline__ uint2 q6_low(const Q6_K::Step& st) {
    return make_uint2(word<U % 2 * 2>(st.low[U / 2]), word<U % 2 * 2 + 1>(st.low[U / 2]));
}

template <int U>
__device__ __forceinline__ uint32_t q6_upper(const Q6_K::Step& st) {
    return word<U % 4>(st.upper[U / 4]);
}

__device__ __forceinline__ float q6_sum(float d, float x_scale, int hi, int lo) {
    return d * (0.25f * x_scale * fmaf((float)hi, 256.f, (float)lo));
}

// Lane c has half c % 2 of units c / 2, c / 2 + 2 ..: 16 values, which have a scale of
// their own.
__device__ __forceinline__ void add_group(OneSum& sum, const Q6_K::Step& st, const XGroup<1>& x,
                                          const XGroup<1>& zeros, int lane) {
    constexpr uint32_t SIGN = 0x80808080;
    const int c = lane % 4, share = lane / 8, digit = lane / 4 % 2;
    const uint2* from[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        from[i] = &(i == share / 2 && c / 2 == share % 2 ? x : zeros).digits[0][digit][c];
    // This lane's scales of units 0, 2, 4, 6 (from its own on) in bytes 0 and 2.
    const int shift = c / 2 * 8;
    const uint32_t scales[4] = {(st.scales.x ^ SIGN) >> shift, (st.scales.y ^ SIGN) >> shift,
                                (st.scales.z ^ SIGN) >> shift, (st.scales.w ^ SIGN) >> shift};
    int total[4] = {};
    each<GROUP_UNITS / 2>([&](auto pair) {
        constexpr int P = decltype(pair)::value;
        int part[4] = {};
        each<2>([&](auto parity) {
            constexpr int U = 2 * P + decltype(parity)::value;
            uint32_t a[4];
            q6_bytes(q6_low<U>(st), q6_upper<U>(st), a);
            mma_bytes(part, a, from[U % 2][U * 8]);
        });
        const int s0 = signed_byte<P % 2 * 2>(scales[P / 2]), s1 = signed_byte<P % 2 * 2>(scales[2 + P / 2]);
        total[0] += s0 * part[0], total[1] += s0 * part[1];
        total[2] += s1 * part[2], total[3] += s1 * part[3];
    });
    const float2 d = __half22float2(as_half2(st.d));
    sum.v[0] += q6_sum(d.x, x.scale[0], total[0], total[1]);
    sum.v[1] += q6_sum(d.y, x.scale[0], total[2], total[3]);
}

// The sum of a row's classes, each `stride` floats after the one before.
__device__ __forceinline__ float sum_of_classes(const float* s, int stride) {
    const float even = (s[0] + s[4 * stride]) + (s[2 * stride] + s[6 * stride]);
    return even + ((s[stride] + s[5 * stride]) + (s[3 * stride] + s[7 * stride]));
}

// 1 / sqrt(mean(x^2) + eps) from the sums of squares of x's groups; one warp.
__device__ __forceinline__ float norm_factor(const float* squares, int n_groups, float eps, int lane) {
    float sum = 0.f;
    for (int g = lane; g < n_groups; g += WARP) sum += squares[g];
    return 1.f / sqrtf(warp_sum(sum) / (n_groups * X_GROUP) + eps);
}
