// Independent neighbours of a graph that run the same kernel share a launch: the
// blocks of job j are those from first_block[j] on. `src/backend/cuda/bind.rs`
// packs the same struct.
#pragma once
#include "common.cuh"

constexpr int MAX_JOBS = 4;

template <class Job>
struct Jobs {
    int n;
    int first_block[MAX_JOBS];
    int pad;
    Job job[MAX_JOBS];
};

// Number of this block's job; `block` becomes its number inside the job.
template <class Job>
__device__ __forceinline__ int my_job(const Jobs<Job>& jobs, int& block) {
    int j = 0;
#pragma unroll
    for (int i = 1; i < MAX_JOBS; i++)
        if (i < jobs.n && blockIdx.x >= jobs.first_block[i]) j = i;
    block = blockIdx.x - jobs.first_block[j];
    return j;
}
