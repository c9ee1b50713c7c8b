// RMS_NORM, NORM, L2_NORM, SOFT_MAX: each row by one warp (`_warp`) or one block (`_block`).
//
//   rms_norm  dst[k, ..] = x / sqrt(mean(x^2) + eps) * weight[k], the weight optional
//   norm      dst[k, ..] = (x - mean) / sqrt(var + eps)
//   l2_norm   dst[k, ..] = x / max(sqrt(sum(x^2)), eps)
//   soft_max  dst[k, ..] = softmax(x * factor); a row of -inf gives zeros
//
// All f32, rows contiguous, other strides free, k >= 1. Grids as in row_group.cuh;
// blocks of 32 to 1024 threads. Accumulators: f32, f64 for NORM.
#include "math.cuh"
#include "row_group.cuh"

// Values of a row that a thread keeps in registers, in fours: 16,384 a full block.
constexpr int KEPT = 4;

template <typename G>
__device__ __forceinline__ void rms_norm_fours(Four<float>* y, const Four<float>* x, const Four<float>* w,
                                               int k, float eps) {
    const int n = k / 4, first = G::index(), step = G::size();
    Four<float> kept[KEPT], first_w = {};
    if (w && first < n) first_w = w[first];  // under way beside x
    float sum = 0.f;
    auto add = [&](const Four<float>& a) {
        sum += (a.v[0] * a.v[0] + a.v[1] * a.v[1]) + (a.v[2] * a.v[2] + a.v[3] * a.v[3]);
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int c = first + j * step;
        if (c < n) {
            kept[j] = x[c];
            add(kept[j]);
        }
    }
    for (int c = first + KEPT * step; c < n; c += step) add(x[c]);
    const float scale = 1.f / sqrtf(G::sum(sum) / k + eps);
    auto store = [&](int c, Four<float> a) {
#pragma unroll
        for (int j = 0; j < 4; j++) a.v[j] *= scale;
        if (w) {
            const Four<float> b = c == first ? first_w : w[c];
#pragma unroll
            for (int j = 0; j < 4; j++) a.v[j] *= b.v[j];
        }
        y[c] = a;
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int c = first + j * step;
        if (c < n) store(c, kept[j]);
    }
    for (int c = first + KEPT * step; c < n; c += step) store(c, x[c]);
}

template <typename G>
__device__ __forceinline__ void rms_norm(const View& dst, const View& src, const View& weight, float eps) {
    const long long r = G::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* x = row_of<const float>(src, at.i1, at.i2, at.i3);
    const float* w = (const float*)weight.data;
    float* y = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int k = dim(src, 0);
    if (k % 4 == 0 && fours(x) && fours(y) && fours(w)) {
        rms_norm_fours<G>((Four<float>*)y, (const Four<float>*)x, (const Four<float>*)w, k, eps);
        return;
    }
    float sum = 0.f;
    for (int c = G::index(); c < k; c += G::size()) sum += x[c] * x[c];
    const float scale = 1.f / sqrtf(G::sum(sum) / k + eps);
    for (int c = G::index(); c < k; c += G::size()) y[c] = w ? x[c] * scale * w[c] : x[c] * scale;
}

template <typename G>
__device__ __forceinline__ void norm(const View& dst, const View& src, float eps) {
    const long long r = G::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* x = row_of<const float>(src, at.i1, at.i2, at.i3);
    float* y = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int k = dim(src, 0);
    // f64: the mean may be large beside the spread.
    double sum = 0.;
    for (int c = G::index(); c < k; c += G::size()) sum += x[c];
    const double mean = G::sum(sum) / k;
    sum = 0.;
    for (int c = G::index(); c < k; c += G::size()) sum += (x[c] - mean) * (x[c] - mean);
    const float scale = 1.f / sqrtf((float)(G::sum(sum) / k) + eps), m = (float)mean;
    for (int c = G::index(); c < k; c += G::size()) y[c] = (x[c] - m) * scale;
}

template <typename G>
__device__ __forceinline__ void l2_norm(const View& dst, const View& src, float eps) {
    const long long r = G::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* x = row_of<const float>(src, at.i1, at.i2, at.i3);
    float* y = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int k = dim(src, 0);
    float sum = 0.f;
    for (int c = G::index(); c < k; c += G::size()) sum += x[c] * x[c];
    const float scale = 1.f / fmaxf(sqrtf(G::sum(sum)), eps);
    for (int c = G::index(); c < k; c += G::size()) y[c] = x[c] * scale;
}

template <typename G>
__device__ __forceinline__ void soft_max(const View& dst, const View& src, float factor) {
    const long long r = G::row();
    if (r >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, r);
    if (!is_live(dst, at)) return;
    const float* x = row_of<const float>(src, at.i1, at.i2, at.i3);
    float* y = row_of<float>(dst, at.i1, at.i2, at.i3);
    const int k = dim(src, 0);
    float most = -INFINITY;
    for (int c = G::index(); c < k; c += G::size()) most = fmaxf(most, __fmul_rn(x[c], factor));
    most = G::max(most);
    if (most == -INFINITY) {
        for (int c = G::index(); c < k; c += G::size()) y[c] = 0.f;
        return;
    }
    float sum = 0.f;
    for (int c = G::index(); c < k; c += G::size()) {
        // Rounded like the maximum, which must give exactly 1.
        const float e = expf(__fmul_rn(x[c], factor) - most);
        sum += e;
        y[c] = e;
    }
    sum = G::sum(sum);
    for (int c = G::index(); c < k; c += G::size()) y[c] /= sum;
}

// rms_norm has 64 registers a thread at most, so that a full block fits.
#define ROW_KERNELS(G, suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(1024)                                                       \
        rms_norm_##suffix(View dst, View x, View weight, float eps) {                                        \
        start();                                                                                             \
        rms_norm<G>(dst, x, weight, eps);                                                                    \
    }                                                                                                        \
    extern "C" __global__ void norm_##suffix(View dst, View x, float eps) { start(); norm<G>(dst, x, eps); } \
    extern "C" __global__ void l2_norm_##suffix(View dst, View x, float eps) {                               \
        start();                                                                                             \
        l2_norm<G>(dst, x, eps);                                                                             \
    }                                                                                                        \
    extern "C" __global__ void soft_max_##suffix(View dst, View x, float factor) {                           \
        start();                                                                                             \
        soft_max<G>(dst, x, factor);                                                                         \
    }

ROW_KERNELS(WarpRow, warp)
ROW_KERNELS(BlockRow, block)
