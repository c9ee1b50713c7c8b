// ROPE and HEAD_ROWS: one warp a head of a token; head_rows.cuh has the operands.
//
//   grid = for each job ceil(n_head * n / (blockDim.x / 32)), blocks of whole warps
#include "head_rows.cuh"
#include "jobs.cuh"

extern "C" __global__ void head_rows(const __grid_constant__ Jobs<HeadRows> jobs) {
    let_next_start();
    int block;
    const HeadRows& p = jobs.job[my_job(jobs, block)];
    const long long r = (long long)block * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (r < (long long)p.x.ne[1] * p.x.ne[2] * p.x.ne[3])
        head_row(p, r);
    else
        wait_for_inputs();
}
