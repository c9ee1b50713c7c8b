// attn_token_<one|few>_<head_dim>: ATTN for one token or up to 16, with the HEAD_ROWS ahead of
// it (RoPE and norm of Q and K, storing K and V) where the host took them in, split over the
// KV length.
//   operands as in attn.cuh, k and v f16, head_dim_k == head_dim_v == <head_dim>
//   k.nb[1], v.nb[1] and the data: multiples of 16 bytes; nb[1] < 2^27 bytes
//   arrived  zeros before and after, one for each row tile and KV head
//   grid = (ceil(n * group / 8) row tiles, n_head_kv, n_split), block 256
//   dynamic shared memory: `src/backend/cuda/ops/attn_token.rs` counts it
//
// A step of a short context is all latency: of memory, and of instructions that wait for each
// other, some six cycles each. So a block has many warps with little to do each (a query row,
// 16 cells), one token has code of its own, and what does not depend on the kernel before is
// done ahead of the wait: who is seen, the sines, and, when HEAD_ROWS is in here, copies of K
// and V into shared memory, since all cells but those of this step are there already; theirs
// come from the block's own work.
//
// Each warp walks its own chunks of cells with its own running softmax. Cells are the rows of
// its products, query rows the 8 columns: K times q, then V transposed times weights. The
// last block of a row tile to be done adds the splits up, in order.
#include "attn.cuh"
#include "head_rows.cuh"

constexpr int ROWS = 8, WARPS = 8, THREADS = WARPS * WARP;
constexpr int MOST_TOKENS = 16;  // VEC_TOKENS of the host
constexpr int CELLS = 16;        // of a warp's chunk
static_assert(WARPS * CELLS == SPLIT_CELLS, "a split's cells are a chunk for each warp");
enum { Q, K, V };

struct AttnToken {
    HeadRows heads[3];  // Q, K, V; null x: q and the cache are there already
    Attn a;
    int n_split, group;
    float2* parts;
    float* part_out;
    unsigned* arrived;
};

// The cells of a chunk: which any token of the block sees, which the tokens of this lane's
// two rows see, which are written in this step.
struct Chunk {
    int first;  // cell
    uint32_t seen, visible[2], fresh;
};

// The transpose of an 8 x 8 matrix of halves: row g, columns 2c, 2c + 1 in and out.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

template <int HD>
struct TokenShared {
    static constexpr int STRIDE = HD + 8;  // halves of a cell: rows lie in different banks
    static constexpr int SUM_STRIDE = HD + 4;
    // A warp's K and V of a chunk; later its sums, f32 [row][SUM_STRIDE].
    struct alignas(16) Cells {
        half of[2][CELLS][STRIDE];
    };
    static_assert(sizeof(Cells) >= ROWS * SUM_STRIDE * 4, "sums fit");

    Cells cells[WARPS];
    uint4 q[HD / 16][WARP];  // the `b` of mma: hi of k and k + 8, lo of both
    float row[WARPS][HD];
    float factor[ROWS];
    float max[ROWS][WARPS], sum[ROWS][WARPS], weight[ROWS][WARPS];
    float2 total[ROWS];  // max and sum of all warps
    // The block's tokens; those whose cells it reads, in order.
    int pos[ROWS], seq[ROWS], n_tokens;
    int fresh_token[MOST_TOKENS], fresh_cell[MOST_TOKENS], n_fresh;
    uint32_t needed;  // one bit for each token of either
    int is_last;
};

static_assert(sizeof(TokenShared<128>) == 78896, "`src/backend/cuda/ops/attn_token.rs` counts it");

template <int HD, bool ONE>
struct Block {
    using Shared = TokenShared<HD>;
    static constexpr int PARTS = HD / 8, AT_ONCE = WARP / PARTS;  // cells that a warp copies at once
    static constexpr int PAIRS_PER_LANE = HD / 2 / WARP + (HD / 2 % WARP != 0);

    const AttnToken& p;
    const Attn& a;
    Shared& sh;
    float2* turns;     // [token][HD / 2] of RoPE
    half* fresh_rows;  // [fresh token][K, V][HD]
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tile = blockIdx.x, head_kv = blockIdx.y;
    int n_rows, first_row, n_cells;
    int row_token[2];        // of rows 2c and 2c + 1, among the block's; -1 for dead rows
    int cell_pos, cell_seq;  // of this lane's cell of the chunk that is looked at next
    int one_pos, one_seq;    // of the one token, and its cell
    int one_cell;

    __device__ __forceinline__ Block(const AttnToken& p, Shared& sh, char* rest) : p(p), a(p.a), sh(sh) {
        turns = (float2*)rest;
        fresh_rows = (half*)(turns + (ONE ? 1 : a.q.ne[2]) * (HD / 2));
    }

    __device__ __forceinline__ bool fused() const { return p.heads[K].x.data != nullptr; }
    __device__ __forceinline__ int n_tokens() const { return ONE ? 1 : sh.n_tokens; }
    __device__ __forceinline__ int pos(int t) const { return ONE ? one_pos : sh.pos[t]; }
    __device__ __forceinline__ int seq(int t) const { return ONE ? one_seq : sh.seq[t]; }
    __device__ __forceinline__ int n_fresh() const { return ONE ? (one_cell >= 0 ? 1 : 0) : sh.n_fresh; }
    __device__ __forceinline__ int fresh_cell(int i) const { return ONE ? one_cell : sh.fresh_cell[i]; }
    __device__ __forceinline__ int fresh_token(int i) const { return ONE ? 0 : sh.fresh_token[i]; }
    __device__ __forceinline__ int token_of(int row) const { return ONE ? 0 : ratio(first_row + row, p.group); }
    __device__ __forceinline__ int head_of(int row) const {
        return head_kv * p.group + first_row + row - token_of(row) * p.group;
    }
    __device__ __forceinline__ int stride() const { return p.n_split * SPLIT_CELLS; }
    // Splits that have cells; the first is there for tokens that see none.
    __device__ __forceinline__ int n_active() const {
        return max(1, min(p.n_split, (n_cells + SPLIT_CELLS - 1) / SPLIT_CELLS));
    }
    // True for cells of this block's chunks.
    __device__ __forceinline__ bool reads(int cell) const {
        return cell >= 0 && cell < n_cells && cell / SPLIT_CELLS % p.n_split == blockIdx.z;
    }

    // Whose rows are here. False: nothing to do.
    __device__ __forceinline__ bool open() {
        ask((blockIdx.z * WARPS + warp) * CELLS, a.cell_pos.ne[0]);  // before the counts are there
        if (ONE) {
            one_pos = *ints(a.pos), one_seq = *ints(a.seq);
            one_cell = fused() ? *ints(p.heads[K].slots) : -1;
        }
        first_row = tile * ROWS;
        const int n_live = live_tokens(a);
        n_rows = min(ROWS, n_live * p.group - first_row);
        n_cells = live_cells(a);
        if (n_rows <= 0 || blockIdx.z >= n_active()) return false;
        const int first_token = token_of(0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = lane % 4 * 2 + h;
            row_token[h] = row < n_rows ? token_of(row) - first_token : -1;
        }
        if (ONE) {
            if (!reads(one_cell)) one_cell = -1;
            return true;
        }
        if (warp == 0) {
            const int n_tokens = token_of(n_rows - 1) - first_token + 1;
            const bool mine = lane < n_tokens, any = fused() && lane < n_live;
            const int pos = mine ? ints(a.pos)[first_token + lane] : -1;
            const int seq = mine ? ints(a.seq)[first_token + lane] : -1;
            const int cell = any ? ints(p.heads[K].slots)[lane] : -1, owner = any ? ints(a.seq)[lane] : -1;
            bool shares = false;
            for (int t = 0; t < n_tokens; t++) shares |= __shfl_sync(ALL_LANES, seq, t) == owner;
            const uint32_t fresh = __ballot_sync(ALL_LANES, shares && reads(cell));
            if (fresh >> lane & 1) {
                const int at = __popc(fresh & ((1u << lane) - 1));
                sh.fresh_token[at] = lane, sh.fresh_cell[at] = cell;
            }
            if (mine) sh.pos[lane] = pos, sh.seq[lane] = seq;
            if (lane == 0) {
                sh.n_tokens = n_tokens, sh.n_fresh = __popc(fresh);
                sh.needed = fresh | ((1u << n_tokens) - 1) << first_token;
            }
        }
        __syncthreads();
        return true;
    }

    // Asks who sits in a chunk's cells, of `n`.
    __device__ __forceinline__ void ask(int first, int n) {
        const bool there = lane < CELLS && first + lane < n;
        cell_pos = there ? ints(a.cell_pos)[first + lane] : -1;
        cell_seq = there ? ints(a.cell_seq)[first + lane] : -1;
    }

    // The next chunk from `first` on that is not all hidden; past the end when there is none.
    __device__ __forceinline__ Chunk look(int first) {
        Chunk c;
        c.seen = c.fresh = 0;
        for (; first < n_cells; first += stride()) {
            if (first + lane >= n_cells) cell_pos = -1;
            c.visible[0] = c.visible[1] = 0;
            for (int t = 0; t < n_tokens(); t++) {
                const bool mine = sees(pos(t), seq(t), cell_pos, cell_seq, a.window);
                const uint32_t cells = __ballot_sync(ALL_LANES, mine);
                c.seen |= cells;
                if (t == row_token[0]) c.visible[0] = cells;
                if (t == row_token[1]) c.visible[1] = cells;
            }
            if (first + stride() < n_cells) ask(first + stride(), n_cells);
            if (c.seen != 0) break;
        }
        c.first = first;
        for (int i = 0; i < n_fresh(); i++) {
            const uint32_t at = fresh_cell(i) - first;
            if (at < CELLS) c.fresh |= 1u << at;
        }
        return c;
    }

    // Starts the copies of a chunk's K or V; unseen cells become zeros, fresh ones are put in
    // later. Always a group, also without a chunk.
    __device__ __forceinline__ void fetch(const Chunk& c, int kind) const {
        const int cell0 = lane / PARTS, part = lane % PARTS;
        if (c.first < n_cells && cell0 < AT_ONCE) {
            const View& of = kind == K ? a.k : a.v;
            const uint32_t nb = (uint32_t)of.nb[1];
            const char* from = of.data + (size_t)(c.first + cell0) * nb + (head_kv * HD * 2 + part * 16);
            half* to = &sh.cells[warp].of[kind - K][cell0][part * 8];
            uint32_t old = (c.seen & ~c.fresh) >> cell0;
#pragma unroll
            for (int i = 0; i < CELLS; i += AT_ONCE) {
                if (CELLS % AT_ONCE != 0 && i + cell0 >= CELLS) break;
                copy_async(to + i * Shared::STRIDE, from, old & 1);
                from += AT_ONCE * nb, old >>= AT_ONCE;
            }
        }
        copies_commit();
    }

    // The chunk's K or V is whole: others' copies and fresh cells are in it.
    __device__ __forceinline__ void complete(const Chunk& c, int kind) const {
        __syncwarp();
        if (c.fresh == 0) return;
        for (int i = 0; i < n_fresh(); i++) {
            const uint32_t at = fresh_cell(i) - c.first;
            const uint4* from = (const uint4*)(fresh_rows + (i * 2 + kind - K) * HD);
            if (at < CELLS && lane < PARTS) *(uint4*)&sh.cells[warp].of[kind - K][at][lane * 8] = from[lane];
        }
        __syncwarp();
    }

    // Sines and cosines of the tokens that have rows or fresh cells here.
    __device__ __forceinline__ void find_turns() const {
        const HeadRows& q = p.heads[Q];
        const int half_rot = q.n_rot / 2;
#pragma unroll 1
        for (uint32_t left = ONE ? 1 : sh.needed; left; left &= left - 1) {
            const int t = ONE ? 0 : __ffs(left) - 1, at = ONE ? one_pos : ints(a.pos)[t];
#pragma unroll 1
            for (int i = threadIdx.x; i < half_rot; i += THREADS) turns[t * (HD / 2) + i] = turn_of(q, at, i);
        }
    }

    // A head with its norm and RoPE to this warp's row.
    __device__ __forceinline__ void turn(const HeadRows& heads, int head, int token) const {
        turn_and_store(heads, normed(heads, head, token, 0, lane), sh.row[warp], lane, [&](int first) {
            Turns t;
#pragma unroll
            for (int j = 0; j < PAIRS; j++)
                t.first[j] = turns[token * (HD / 2) + min(first + j * WARP, heads.n_rot / 2 - 1)];
            return t;
        });
    }

    // A query row as two halves (attn.cuh says why), in the order of mma's `b`.
    __device__ __forceinline__ void stage_query(const float* q, int row, int token) const {
        float2 x[PAIRS_PER_LANE];
        float top = 0.f;
#pragma unroll
        for (int i = 0; i < PAIRS_PER_LANE; i++) {
            const int pair = lane + WARP * i;
            x[i] = pair < HD / 2 ? *(const float2*)(q + 2 * pair) : make_float2(0.f, 0.f);
            top = fmaxf(top, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
        }
        const int up = query_shift(__uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(top))));
        const float scale = __int_as_float((127 + up) << 23);
        uint32_t* words = (uint32_t*)sh.q + row * 16;
#pragma unroll
        for (int i = 0; i < PAIRS_PER_LANE; i++) {
            const int pair = lane + WARP * i;
            if (pair >= HD / 2) continue;
            const float2 y = make_float2(x[i].x * scale, x[i].y * scale);
            const uint32_t hi = pack_half2(y.x, y.y);
            const float2 h = unpack_half2(hi);
            uint32_t* word = words + pair / 8 * (WARP * 4) + pair % 4 * 4 + pair % 8 / 4;
            word[0] = hi;
            word[2] = pack_half2(y.x - h.x, y.y - h.y);
        }
        if (lane == 0) {
            const float undo = __int_as_float((127 - up) << 23);
            sh.factor[row] = undo * score_factor(a, ONE ? one_pos : ints(a.pos)[token]);
        }
    }

    // Query rows and fresh cells, a warp each, after the wait.
    __device__ __forceinline__ void stage() const {
        const int n_tasks = n_rows + 2 * n_fresh();
#pragma unroll 1
        for (int task = warp; task < n_tasks; task += WARPS) {
            const int fresh = (task - n_rows) / 2, kind = task < n_rows ? Q : K + (task - n_rows) % 2;
            const int token = kind == Q ? token_of(task) : fresh_token(fresh);
            const int head = kind == Q ? head_of(task) : head_kv;
            const float* row = sh.row[warp];
            if (fused()) {
                __syncwarp();
                turn(p.heads[kind], head, token);
                __syncwarp();
            } else {
                row = row_of<float>(a.q, head, token);
            }
            if (kind == Q) {
                if (fused() && blockIdx.z == 0)
                    for (int i = lane; i < HD; i += WARP) row_of<float>(p.heads[Q].dst, head, token)[i] = row[i];
                stage_query(row, task, token);
                continue;
            }
            half2* to = (half2*)(fresh_rows + (fresh * 2 + kind - K) * HD);
            for (int i = lane; i < HD / 2; i += WARP) to[i] = __floats2half2_rn(row[2 * i], row[2 * i + 1]);
            __syncwarp();
            // The block with the token's first row writes the cache.
            if (ratio(token * p.group, ROWS) != tile) continue;
            uint4* cached = (uint4*)(row_of<half>(p.heads[kind].dst, fresh_cell(fresh)) + head_kv * HD);
            if (lane < PARTS) cached[lane] = ((const uint4*)to)[lane];
        }
    }

    __device__ __forceinline__ void run() {
        let_next_start();
        if (!open()) return wait_for_inputs();
        const Chunk chunk = look((blockIdx.z * WARPS + warp) * CELLS);
        if (!fused()) {
            if (chunk.first < n_cells && chunk.seen >> lane & 1) {
                const size_t cell = chunk.first + lane;
                for (int i = 0; i < HD * 2; i += 128) prefetch(a.k.data + head_kv * HD * 2 + cell * a.k.nb[1] + i);
                for (int i = 0; i < HD * 2; i += 128) prefetch(a.v.data + head_kv * HD * 2 + cell * a.v.nb[1] + i);
            }
            wait_for_inputs();
        }
#pragma unroll 1
        for (int kind = K; kind <= V; kind++) fetch(chunk, kind);
        if (fused()) {
            find_turns();
            __syncthreads();
            wait_for_inputs();
        }
        stage();
        __syncthreads();
        walk(chunk);
    }

    __device__ __forceinline__ void walk(Chunk chunk) {
        const int g = lane / 4, c = lane % 4;
        float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, out[HD / 16][4] = {};
        const float2 factors = *(const float2*)&sh.factor[2 * c];
        const float factor[2] = {factors.x, factors.y};
        const auto& cells = sh.cells[warp];
        while (chunk.first < n_cells) {
            copies_wait<1>();
            complete(chunk, K);
            float s[4];  // cell g, rows 2c, 2c + 1, then cell g + 8
            dots(s, cells.of[0]);
            const Chunk now = chunk;
            if (chunk.first + stride() < n_cells)
                chunk = look(chunk.first + stride());
            else
                chunk.first = n_cells;
            __syncwarp();
            fetch(chunk, K);
            float keep[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float& x = s[h];
                float& y = s[2 + h];
                x = now.visible[h] >> g & 1 ? finish_score(a, x * factor[h]) : -INFINITY;
                y = now.visible[h] >> (8 + g) & 1 ? finish_score(a, y * factor[h]) : -INFINITY;
                float top = fmaxf(max[h], fmaxf(x, y));
#pragma unroll
                for (int o = 4; o < WARP; o *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, o));
                const float base = finite_max(top), shifted = base - WEIGHT_SHIFT;
                keep[h] = exp2_fast(max[h] - base);
                max[h] = top;
                x = exp2_fast(x - shifted), y = exp2_fast(y - shifted);
                sum[h] = sum[h] * keep[h] + (x + y);
            }
#pragma unroll
            for (int i = 0; i < HD / 16; i++)
                out[i][0] *= keep[0], out[i][1] *= keep[1], out[i][2] *= keep[0], out[i][3] *= keep[1];
            copies_wait<1>();
            complete(now, V);
            weigh_in(out, s, cells.of[1]);
            __syncwarp();
            fetch(chunk, V);
        }
        copies_wait<0>();
        float* mine = (float*)&sh.cells[warp];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = 2 * c + h;
            float all = sum[h];
#pragma unroll
            for (int o = 4; o < WARP; o *= 2) all += __shfl_xor_sync(ALL_LANES, all, o);
            if (g == 0) sh.max[row][warp] = max[h], sh.sum[row][warp] = all;
#pragma unroll
            for (int i = 0; i < HD / 16; i++) {
                mine[row * Shared::SUM_STRIDE + 16 * i + g] = out[i][h];
                mine[row * Shared::SUM_STRIDE + 16 * i + 8 + g] = out[i][2 + h];
            }
        }
        __syncthreads();
        finish();
    }

    // K of 16 cells times q; hi and lo are summed apart, so that products run side by side.
    __device__ __forceinline__ void dots(float (&s)[4], const half (&k)[CELLS][Shared::STRIDE]) const {
        float low[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] = 0.f;
        const half* from = &k[lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8];
#pragma unroll
        for (int step = 0; step < HD / 16; step++) {
            const uint4 q = sh.q[step][lane];
            uint32_t k[4];
            load_matrices(k, from + 16 * step);
            const uint4 rows = make_uint4(k[0], k[1], k[2], k[3]);
            mma(s, rows, q.x, q.y);
            mma(low, rows, q.z, q.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += low[i];
    }

    // out[column, row] += V[cell, column] * weight[cell, row] of 16 cells.
    __device__ __forceinline__ void weigh_in(float (&out)[HD / 16][4], const float (&w)[4],
                                             const half (&v)[CELLS][Shared::STRIDE]) const {
        uint32_t hi[2], lo[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t h = pack_half2(w[2 * i], w[2 * i + 1]);
            const float2 x = unpack_half2(h);
            hi[i] = transposed(h);
            lo[i] = transposed(pack_half2(w[2 * i] - x.x, w[2 * i + 1] - x.y));
        }
        const half* from = &v[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            uint32_t m[4];
            load_matrices_transposed(m, from + 16 * i);
            const uint4 columns = make_uint4(m[0], m[1], m[2], m[3]);
            mma(out[i], columns, hi[0], hi[1]);
            mma(out[i], columns, lo[0], lo[1]);
        }
    }

    // Where a row's result goes, and its share of split 0.
    __device__ __forceinline__ float* result(int row) const {
        return row_of<float>(a.dst, token_of(row)) + head_of(row) * HD;
    }
    __device__ __forceinline__ size_t share(int row) const {
        return ((size_t)token_of(row) * a.q.ne[1] + head_of(row)) * p.n_split;
    }

    // Adds the warps up, in order, and then the splits.
    __device__ __forceinline__ void finish() {
        if (lane < WARPS) {  // warp r has row r
            constexpr unsigned LANES = (1u << WARPS) - 1;
            const float max = sh.max[warp][lane];
            float top = max;
#pragma unroll
            for (int o = 1; o < WARPS; o *= 2) top = fmaxf(top, __shfl_xor_sync(LANES, top, o));
            const float weight = exp2_fast(max - finite_max(top));
            float sum = sh.sum[warp][lane] * weight;
#pragma unroll
            for (int o = 1; o < WARPS; o *= 2) sum += __shfl_xor_sync(LANES, sum, o);
            sh.weight[warp][lane] = weight;
            if (lane == 0) sh.total[warp] = make_float2(top, sum);
        }
        __syncthreads();
        const int n = n_active();
#pragma unroll 1
        for (int i = threadIdx.x; i < n_rows * HD; i += THREADS) {
            const int row = i / HD, d = i % HD;
            float x = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                x = fmaf(((const float*)&sh.cells[w])[row * Shared::SUM_STRIDE + d], sh.weight[row][w], x);
            const float2 total = sh.total[row];
            if (n == 1) {
                result(row)[d] = x * (total.y == 0.f ? 0.f : 1.f / total.y);
            } else {
                if (d == 0) p.parts[share(row) + blockIdx.z] = total;
                p.part_out[(share(row) + blockIdx.z) * HD + d] = x;
            }
        }
        if (n == 1) return;
        __threadfence();
        __syncthreads();  // also: nobody reads the warps' sums any more
        if (threadIdx.x == 0) {
            unsigned* arrived = p.arrived + blockIdx.y * gridDim.x + tile;
            sh.is_last = atomicAdd(arrived, 1) == n - 1;
            if (sh.is_last) *arrived = 0;
        }
        __syncthreads();
        if (!sh.is_last) return;
        __threadfence();
        if (warp < n_rows) combine(warp, n);
    }

    // One warp adds n <= 64 splits of a row up, whose sums pass through its cells' place.
    __device__ __forceinline__ void combine(int row, int n) const {
        constexpr int ROOM = sizeof(typename Shared::Cells) / (HD * 4), COLUMNS = (HD + WARP - 1) / WARP;
        const size_t first = share(row);
        float2 part[2];
        float top = -INFINITY, sum = 0.f, weight[2], out[COLUMNS] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int s = lane + WARP * i;
            part[i] = s < n ? __ldcg(p.parts + first + s) : make_float2(-INFINITY, 0.f);
            top = fmaxf(top, part[i].x);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i] = exp2_fast(part[i].x - finite_max(top));
            sum += weight[i] * part[i].y;
        }
        sum = warp_sum(sum);
        float* room = (float*)&sh.cells[warp];
#pragma unroll 1
        for (int s0 = 0; s0 < n; s0 += ROOM) {
            const int count = min(ROOM, n - s0);
            const float* from = p.part_out + (first + s0) * HD;
#pragma unroll 4
            for (int i = lane; i < count * (HD / 4); i += WARP) stage_16(room + 4 * i, from + 4 * i);
            copies_commit();
            copies_wait<0>();
            __syncwarp();
#pragma unroll 2
            for (int s = 0; s < count; s++) {
                const int at = s0 + s;
                const float w = __shfl_sync(ALL_LANES, at < WARP ? weight[0] : weight[1], at % WARP);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    if (lane + WARP * i < HD) out[i] += w * room[s * HD + lane + WARP * i];
            }
            __syncwarp();
        }
        const float scale = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (lane + WARP * i < HD) result(row)[lane + WARP * i] = out[i] * scale;
    }
};

template <int HD, bool ONE>
__device__ __forceinline__ void attn_token(const AttnToken& p) {
    extern __shared__ __align__(16) char memory[];
    Block<HD, ONE>(p, *(TokenShared<HD>*)memory, memory + sizeof(TokenShared<HD>)).run();
}

#define ATTN_TOKEN(HD)                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        attn_token_one_##HD(const __grid_constant__ AttnToken p) {      \
        attn_token<HD, true>(p);                                        \
    }                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        attn_token_few_##HD(const __grid_constant__ AttnToken p) {      \
        attn_token<HD, false>(p);                                       \
    }

ATTN_TOKEN(64)
ATTN_TOKEN(80)
ATTN_TOKEN(96)
ATTN_TOKEN(112)
ATTN_TOKEN(128)
