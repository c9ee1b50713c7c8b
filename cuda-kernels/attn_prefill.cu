// attn_prefill_<head_dim>: ATTN for many query rows (FlashAttention, arXiv 2205.14135).
//   operands as in attn.cuh, k and v f16, head_dim_k == head_dim_v == <head_dim>
//   k.nb[1], v.nb[1] and the data: multiples of 16 bytes; dst.data and nb[1]: of 8
//   f32 sums on tensor cores; 64 query rows a block, of one KV head, 16 a warp
//   grid = (ceil(n * group / 64), n_head_kv), block 128
//   shared: q fragments of four warps, then a tile of K and one of V as halves
//           [tile_cells, head_dim + 8]
//
// Tiles of K and V go through shared memory by asynchronous copies: V of a tile arrives
// during q . k, K of the next one during the softmax and the product with V. Tiles that
// no row of the block sees are passed over. The pad of 8 halves a row puts the eight rows
// of a matrix load into different banks.
//
// Weights are single halves here, not hi + lo as in attn_split: each is rounded by at most
// 2^-11 on its own, and the sum is that of the rounded ones. Measured against f64 over
// spreads of scores from 0.3 to 10 and 9 to 4096 cells: NMSE 1e-9 to 4.4e-8 (values
// without a common mean and flat scores are the worst case; 1e-7 is asked for). An f16 q
// alone would cost 3e-8 to 1.3e-6, so q is hi + lo.
#include "attn.cuh"

constexpr int TILE_ROWS = 64;

template <int HD>
constexpr int tile_cells = HD <= 128 ? 64 : 32;  // 97 KiB of shared memory for 256
template <int HD>
constexpr int tile_stride = HD + 8;  // in halves

// The tokens of a block's rows.
struct Tokens {
    int first_pos, last_pos, first_seq, last_seq;
};

// A tile of cells: which may be seen by a row of the block (a bit each), and whether all
// are seen by all rows.
struct Cells {
    int tile;
    uint32_t seen[2];
    bool all;
};

// The range of positions and sequences of the live rows from `first_row` on. One warp.
__device__ __forceinline__ Tokens tokens_of(const Attn& a, int first_row, int n_rows, int lane) {
    const int group = group_of(a), first = first_row / group, last = (first_row + n_rows - 1) / group;
    // At most 64 tokens; lanes beyond the last repeat it.
    const int t0 = min(first + lane, last), t1 = min(first + WARP + lane, last);
    const int p0 = ints(a.pos)[t0], p1 = ints(a.pos)[t1], s0 = ints(a.seq)[t0], s1 = ints(a.seq)[t1];
    Tokens t;
    t.first_pos = __reduce_min_sync(ALL_LANES, min(p0, p1));
    t.last_pos = __reduce_max_sync(ALL_LANES, max(p0, p1));
    t.first_seq = __reduce_min_sync(ALL_LANES, min(s0, s1));
    t.last_seq = __reduce_max_sync(ALL_LANES, max(s0, s1));
    return t;
}

// The first tile from `tile` on that a row of the block may see; n_tiles if none. Every
// warp finds the same.
template <int HD>
__device__ __forceinline__ Cells next_tile(const Attn& a, const Tokens& t, int tile, int n_tiles, int n_cells,
                                           int lane) {
    Cells cells = {tile, {0, 0}, true};
    for (; cells.tile < n_tiles; cells.tile++) {
        cells.all = true;
#pragma unroll
        for (int i = 0; i < tile_cells<HD> / WARP; i++) {
            const int cell = cells.tile * tile_cells<HD> + WARP * i + lane;
            bool some = false, all = false;
            if (cell < n_cells) {
                const int pos = ints(a.cell_pos)[cell], seq = ints(a.cell_seq)[cell];
                some = pos >= 0 && pos <= t.last_pos && seq >= t.first_seq && seq <= t.last_seq &&
                       (a.window < 0 || t.first_pos - pos < a.window);
                all = some && pos <= t.first_pos && t.first_seq == t.last_seq &&
                      (a.window < 0 || t.last_pos - pos < a.window);
            }
            cells.seen[i] = __ballot_sync(ALL_LANES, some);
            cells.all = cells.all && __all_sync(ALL_LANES, all);
        }
        if ((cells.seen[0] | cells.seen[1]) != 0) break;
    }
    return cells;
}

// Starts the copies of one head of a tile of cells; cells that no row sees become zeros,
// as infinities may lie there.
template <int HD>
__device__ __forceinline__ void copy_tile(half* to, const View& cache, const Cells& cells) {
    constexpr int CHUNKS = HD / 8, N = tile_cells<HD> * CHUNKS;
    static_assert(N % ATTN_THREADS == 0, "every thread copies the same number of pieces");
    const char* head = cache.data + (size_t)blockIdx.y * HD * 2;
#pragma unroll
    for (int i = 0; i < N / ATTN_THREADS; i++) {
        const int piece = i * ATTN_THREADS + threadIdx.x, cell = piece / CHUNKS, chunk = piece % CHUNKS;
        const bool present = (cell < WARP ? cells.seen[0] : cells.seen[1]) >> cell % WARP & 1;
        const long long from = (long long)cells.tile * tile_cells<HD> + cell;
        const char* src = present ? head + from * cache.nb[1] + chunk * 16 : head;
        copy_async(to + cell * tile_stride<HD> + chunk * 8, src, present);
    }
}

// s[row, cell] = q . k over the tile.
template <int HD>
__device__ __forceinline__ void dots(float (&s)[tile_cells<HD> / 8][4], const uint4* q, const half* k, int lane) {
    // Matrices of a load: cells 0 .. 7 at k and k + 8, then cells 8 .. 15.
    const half* row = k + (lane / 16 * 8 + lane % 8) * tile_stride<HD> + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < HD / 16; step++) {
        const uint4 hi = q[2 * step * WARP + lane], lo = q[(2 * step + 1) * WARP + lane];
#pragma unroll
        for (int j = 0; j < tile_cells<HD> / 16; j++) {
            uint32_t b[4];
            load_matrices(b, row + j * 16 * tile_stride<HD> + step * 16);
            mma(s[2 * j], hi, b[0], b[1]);
            mma(s[2 * j + 1], hi, b[2], b[3]);
            mma(s[2 * j], lo, b[0], b[1]);
            mma(s[2 * j + 1], lo, b[2], b[3]);
        }
    }
}

// Scores from dots, masked: a lane's rows are g and g + 8, its cells 8 j + 2 c and the next.
template <int HD>
__device__ __forceinline__ void mask(const Attn& a, float (&s)[tile_cells<HD> / 8][4], const float (&factor)[2],
                                     const int (&pos)[2], const int (&seq)[2], const Cells& cells, int n_cells,
                                     int lane) {
#pragma unroll
    for (int j = 0; j < tile_cells<HD> / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] *= factor[i / 2];
    }
    if (a.softcap != 0.f) {
#pragma unroll
        for (int j = 0; j < tile_cells<HD> / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[j][i] = finish_score(a, s[j][i]);
        }
    }
    if (cells.all) return;
#pragma unroll
    for (int j = 0; j < tile_cells<HD> / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int cell = cells.tile * tile_cells<HD> + 8 * j + lane % 4 * 2 + i;
            const int cell_pos = cell < n_cells ? __ldg(ints(a.cell_pos) + cell) : -1;
            const int cell_seq = cell < n_cells ? __ldg(ints(a.cell_seq) + cell) : -1;
            if (!sees(pos[0], seq[0], cell_pos, cell_seq, a.window)) s[j][i] = -INFINITY;
            if (!sees(pos[1], seq[1], cell_pos, cell_seq, a.window)) s[j][i + 2] = -INFINITY;
        }
    }
}

// out[row, column] += weights . v over the tile; the weights' rounded sums go to `run`.
template <int HD>
__device__ __forceinline__ void add_values(float (&out)[HD / 8][4], Running& run,
                                           const float (&s)[tile_cells<HD> / 8][4], const half* v, int lane) {
    // Matrices of a load: cells 0 .. 7, then 8 .. 15, of 8 columns; then of the next 8.
    const half* row = v + (lane / 8 % 2 * 8 + lane % 8) * tile_stride<HD> + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < tile_cells<HD> / 16; j++) {
        uint4 w;
        w.x = pack_half2(s[2 * j][0], s[2 * j][1]);
        w.y = pack_half2(s[2 * j][2], s[2 * j][3]);
        w.z = pack_half2(s[2 * j + 1][0], s[2 * j + 1][1]);
        w.w = pack_half2(s[2 * j + 1][2], s[2 * j + 1][3]);
        const float2 x = unpack_half2(w.x), y = unpack_half2(w.y), z = unpack_half2(w.z), u = unpack_half2(w.w);
        run.sum[0] += (x.x + x.y) + (z.x + z.y);
        run.sum[1] += (y.x + y.y) + (u.x + u.y);
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
            uint32_t b[4];
            load_matrices_transposed(b, row + j * 16 * tile_stride<HD> + d * 16);
            mma(out[2 * d], w, b[0], b[1]);
            mma(out[2 * d + 1], w, b[2], b[3]);
        }
    }
}

// q of this warp's 16 rows to shared memory, and the factors of this lane's rows. `pos`
// and `seq` are those of rows g and g + 8; -1 for dead rows, which see nothing.
template <int HD>
__device__ __forceinline__ void stage_warp(const Attn& a, uint32_t* fragments, int first_row, int end_row,
                                           float (&factor)[2], int (&pos)[2], int (&seq)[2], int lane) {
    const int group = group_of(a);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll 4
        for (int row = 8 * h; row < 8 * h + 8; row++) {
            const int flat = first_row + row, head = blockIdx.y * group + flat % group;
            const float* q = flat < end_row ? row_of<float>(a.q, head, flat / group) : nullptr;
            const float undo = stage_row<HD, false>(q, fragments, row, lane);
            if (row % 8 == lane / 4) factor[h] = undo;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int flat = first_row + lane / 4 + 8 * h;
        pos[h] = flat < end_row ? ints(a.pos)[flat / group] : -1;
        seq[h] = flat < end_row ? ints(a.seq)[flat / group] : -1;
        factor[h] *= score_factor(a, pos[h]);
    }
}

template <int HD>
__device__ __forceinline__ void write_rows(const Attn& a, const float (&out)[HD / 8][4], const Running& run,
                                           int first_row, int end_row, int lane) {
    const int group = group_of(a);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = row_sum(run.sum[h]), scale = sum == 0.f ? 0.f : 1.f / sum;
        const int flat = first_row + lane / 4 + 8 * h;
        if (flat >= end_row) continue;
        const int head = blockIdx.y * group + flat % group;
        float2* row = (float2*)(row_of<float>(a.dst, flat / group) + (size_t)head * HD);
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            row[4 * i + lane % 4] = make_float2(out[i][2 * h] * scale, out[i][2 * h + 1] * scale);
        }
    }
}

template <int HD>
__device__ __forceinline__ void attn_prefill(const Attn& a) {
    constexpr int CELLS = tile_cells<HD>;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // Later rows see more cells: they start first.
    const int block_row = (gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    const int end_row = live_tokens(a) * group_of(a), first_row = block_row + 16 * warp;
    if (block_row >= end_row) return;
    const bool live = first_row < end_row;
    const int n_cells = live_cells(a), n_tiles = (n_cells + CELLS - 1) / CELLS;
    uint32_t* fragments = (uint32_t*)dynamic_shared() + warp * HD * 16;
    half* k = (half*)(dynamic_shared() + TILE_ROWS * HD * 4);
    half* v = k + CELLS * tile_stride<HD>;

    const Tokens tokens = tokens_of(a, block_row, min(TILE_ROWS, end_row - block_row), lane);
    Cells cells = next_tile<HD>(a, tokens, 0, n_tiles, n_cells, lane);
    if (cells.tile < n_tiles) copy_tile<HD>(k, a.k, cells);
    copies_commit();
    float factor[2];
    int pos[2], seq[2];
    stage_warp<HD>(a, fragments, first_row, end_row, factor, pos, seq, lane);
    __syncwarp();

    Running run;
    float out[HD / 8][4] = {};
    while (cells.tile < n_tiles) {
        copy_tile<HD>(v, a.v, cells);
        copies_commit();
        const Cells next = next_tile<HD>(a, tokens, cells.tile + 1, n_tiles, n_cells, lane);
        copies_wait<1>();
        __syncthreads();  // K is here
        float s[CELLS / 8][4] = {};
        if (live) dots<HD>(s, (const uint4*)fragments, k, lane);
        __syncthreads();  // K may be overwritten
        if (next.tile < n_tiles) copy_tile<HD>(k, a.k, next);
        copies_commit();
        if (live) {
            mask<HD>(a, s, factor, pos, seq, cells, n_cells, lane);
            const float2 keep = weigh(run, s);
#pragma unroll
            for (int i = 0; i < HD / 8; i++) {
                out[i][0] *= keep.x, out[i][1] *= keep.x, out[i][2] *= keep.y, out[i][3] *= keep.y;
            }
        }
        copies_wait<1>();
        __syncthreads();  // V is here
        if (live) add_values<HD>(out, run, s, v, lane);
        __syncthreads();  // V may be overwritten
        cells = next;
    }
    write_rows<HD>(a, out, run, first_row, end_row, lane);
}

#define ATTN_PREFILL(HD, BLOCKS)                                                                        \
    extern "C" __global__ void __launch_bounds__(ATTN_THREADS, BLOCKS) attn_prefill_##HD(ATTN_PARAMS) { \
        start();                                                                                        \
        attn_prefill<HD>(ATTN_STRUCT);                                                                  \
    }

// Blocks for 128 on a multiprocessor: three by the shared memory of sm_90 and sm_100, two
// at most elsewhere.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define BLOCKS_128 2
#else
#define BLOCKS_128 3
#endif

ATTN_PREFILL(64, 4)
ATTN_PREFILL(80, 3)
ATTN_PREFILL(96, 3)
ATTN_PREFILL(112, 2)
ATTN_PREFILL(128, BLOCKS_128)
ATTN_PREFILL(192, 2)
ATTN_PREFILL(256, 2)
