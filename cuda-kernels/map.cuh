// Value-wise work on rows. `lanes` threads (a power of two, at most blockDim.x) share
// a row, so a block holds blockDim.x / lanes rows; blockIdx.y cuts long rows.
//
//   grid = (ceil(rows / (blockDim.x / lanes)), column blocks)
#pragma once
#include "convert.cuh"

// A thread's row, first column and column step, in units of one or four values.
struct Place {
    long long row;
    int col, step;
};

__device__ __forceinline__ Place place(int lanes) {
    Place p;
    p.row = (long long)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    p.col = blockIdx.y * lanes + threadIdx.x % lanes;
    p.step = gridDim.y * lanes;
    return p;
}

__device__ __forceinline__ long long n_rows(const View& v) {
    return (long long)v.ne[1] * v.ne[2] * v.ne[3];
}

// y[c] = x[c] in y's type, c < k.
template <typename Y, typename X>
__device__ __forceinline__ void copy_row(Y* y, const X* x, int k, Place p) {
    if (k % 4 == 0 && fours(y) && fours(x)) {
        for (int c = p.col; c < k / 4; c += p.step) {
            const Four<X> a = ((const Four<X>*)x)[c];
            Four<Y> out;
#pragma unroll
            for (int j = 0; j < 4; j++) put(&out.v[j], to_f32(a.v[j]));
            ((Four<Y>*)y)[c] = out;
        }
    } else {
        for (int c = p.col; c < k; c += p.step) put(y + c, to_f32(x[c]));
    }
}

// y[c] = f(a[c], b[c]), c < k; b may be one value that repeats.
template <typename F>
__device__ __forceinline__ void map_row(float* y, const float* a, const float* b, bool repeats, int k, Place p,
                                        F f) {
    if (k % 4 == 0 && fours(y) && fours(a) && (repeats || fours(b))) {
        for (int c = p.col; c < k / 4; c += p.step) {
            const Four<float> va = ((const Four<float>*)a)[c];
            Four<float> vb, out;
            if (repeats) {
                vb.v[0] = vb.v[1] = vb.v[2] = vb.v[3] = b[0];
            } else {
                vb = ((const Four<float>*)b)[c];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) out.v[j] = f(va.v[j], vb.v[j]);
            ((Four<float>*)y)[c] = out;
        }
    } else {
        for (int c = p.col; c < k; c += p.step) y[c] = f(a[c], b[repeats ? 0 : c]);
    }
}
