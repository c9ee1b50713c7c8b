// What attn_token.cu does before it walks over cells: operands, who sees whom, copies of K and
// V, sines, query rows and the cells of this step.
#pragma once
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
};
