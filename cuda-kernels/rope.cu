// ROPE and HEAD_ROWS: one warp a head of a token; head_rows.cuh has the operands.
//
//   grid = ceil(n_head * n / (blockDim.x / 32)), blocks of whole warps
#include "head_rows.cuh"

extern "C" __global__ void head_rows(View dst, View x, View weight, View pos, View factors, View slots,
                                     const double* coefficients, float eps, int n_rot, int neox,
                                     float magnitude) {
    const HeadRows p = {dst, x, weight, pos, factors, slots, coefficients, eps, n_rot, neox, magnitude};
    const long long r = (long long)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (r < (long long)x.ne[1] * x.ne[2] * x.ne[3]) head_row(p, r);
}
