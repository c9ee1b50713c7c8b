// Blocks of one launch that hand 64-bit results to each other.
//
// A launch of B blocks owns `Relay`: zeroed once, kept between launches of the same
// kernel with the same grid (`Arg::State` of src/backend/cuda/kernel.rs), never reset.
//
//   tickets  a block's number is the ticket it draws, not blockIdx: whoever waits for a
//            lower number waits for a block that runs already, so nothing can hang
//   slots    16 bytes each, written once a launch. Each half of a result travels with
//            the launch's number in one 64-bit word, so a word with that number is
//            complete: no fence, no second trip, and what older launches left is void
#pragma once
#include "common.cuh"

// Half a result each: launch number above, 32 bits of the result below.
struct alignas(16) Slot {
    unsigned long long high, low;
};

struct Relay {
    unsigned long long tickets;  // drawn since memory was zeroed
    unsigned long long unused;
    Slot slots[1];
};

static_assert(offsetof(Relay, slots) == 16, "the host counts these bytes");

struct Turn {
    int block;        // number of this block in its launch, in the order of starting
    unsigned launch;  // number of the launch, from 1; comes round after 2^32 launches
};

// Comes before `let_next_start`: the next launch may not draw before all of this one
// have, hence the barrier. It need not wait for inputs, which hides its trip.
__device__ __forceinline__ Turn draw_turn(Relay* relay) {
    __shared__ Turn turn;
    if (threadIdx.x == 0) {
        const unsigned long long ticket = atomicAdd(&relay->tickets, 1ull);
        const unsigned long long launch = ticket / gridDim.x;
        turn.block = (int)(ticket - launch * gridDim.x);
        turn.launch = (unsigned)launch + 1;
    }
    __syncthreads();
    return turn;
}

// Takes the place of `start`.
__device__ __forceinline__ Turn take_turn(Relay* relay) {
    const Turn turn = draw_turn(relay);
    start();
    return turn;
}

__device__ __forceinline__ void send(Slot* slot, unsigned launch, uint64_t bits) {
    const uint64_t number = (uint64_t)launch << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(number | bits >> 32),
                 "l"(number | (bits & 0xffffffffu))
                 : "memory");
}

// True when the slot holds a result of this launch, which then is in `bits`.
__device__ __forceinline__ bool received(const Slot* slot, unsigned launch, uint64_t& bits) {
    uint64_t high, low;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(high), "=l"(low) : "l"(slot) : "memory");
    bits = high << 32 | (low & 0xffffffffu);
    return high >> 32 == launch && low >> 32 == launch;
}

// Waits for a result of a lower block number.
__device__ __forceinline__ uint64_t receive(const Slot* slot, unsigned launch) {
    uint64_t bits;
    while (!received(slot, launch, bits)) {
    }
    return bits;
}

__device__ __forceinline__ uint64_t as_bits(double x) { return (uint64_t)__double_as_longlong(x); }

__device__ __forceinline__ double as_double(uint64_t bits) { return __longlong_as_double((long long)bits); }
