// GET_ROWS (of plain tables), SET_ROWS, CONT, CONCAT, CPY: rows between tensors and types.
//
//   get_rows_plain_<t>  table[k, r, n], ids[p, n] -> dst[k, p, n] in f32; an id
//                       outside the table gives a zero row
//   set_rows_<t>        cache[k, slots[i]] = x[k, i]; a slot outside is passed over
//   copy_<t>            dst[k, ..] = x[k, ..] of any strides, f32 to t
//   concat              dst[first .. first + k, ..] = x[k, ..] in f32
//
// <t> is f32, f16 or bf16. Grid and `lanes` as in map.cuh, over the rows of dst (of
// x for SET_ROWS and CONCAT).
#include "map.cuh"

template <typename T>
__device__ __forceinline__ void get_rows(const View& dst, const View& table, const View& ids, int lanes) {
    const Place p = place(lanes);
    if (p.row >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, p.row);
    if (!is_live(dst, at)) return;
    const int id = row_of<const int>(ids, at.i2)[at.i1];
    float* y = row_of<float>(dst, at.i1, at.i2);
    if (id >= 0 && id < dim(table, 1)) {
        copy_row(y, row_of<const T>(table, id, at.i2), dst.ne[0], p);
    } else {
        for (int c = p.col; c < dst.ne[0]; c += p.step) y[c] = 0.f;
    }
}

template <typename T>
__device__ __forceinline__ void set_rows(const View& cache, const View& x, const View& slots, int lanes) {
    const Place p = place(lanes);
    if (p.row >= min(dim(x, 1), dim(slots, 0))) return;
    const int slot = ((const int*)slots.data)[p.row];
    if (slot < 0 || slot >= dim(cache, 1)) return;
    copy_row(row_of<T>(cache, slot), row_of<const float>(x, p.row), x.ne[0], p);
}

template <typename T>
__device__ __forceinline__ void copy(const View& dst, const View& x, int lanes) {
    const Place p = place(lanes);
    if (p.row >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, p.row);
    if (!is_live(dst, at)) return;
    copy_row(row_of<T>(dst, at.i1, at.i2, at.i3), row_of<const float>(x, at.i1, at.i2, at.i3), dim(dst, 0), p);
}

extern "C" __global__ void concat(View dst, View x, int first, int lanes) {
    start();
    const Place p = place(lanes);
    if (p.row >= n_rows(x)) return;
    const RowIndex at = row_index(x, p.row);
    if (!is_live(x, at)) return;
    float* y = row_of<float>(dst, at.i1, at.i2, at.i3) + first;
    copy_row(y, row_of<const float>(x, at.i1, at.i2, at.i3), x.ne[0], p);
}

#define PLAIN_TYPE(name, T)                                                                       \
    extern "C" __global__ void get_rows_plain_##name(View dst, View table, View ids, int lanes) { \
        start();                                                                                  \
        get_rows<T>(dst, table, ids, lanes);                                                      \
    }                                                                                             \
    extern "C" __global__ void set_rows_##name(View cache, View x, View slots, int lanes) {       \
        start();                                                                                  \
        set_rows<T>(cache, x, slots, lanes);                                                      \
    }                                                                                             \
    extern "C" __global__ void copy_##name(View dst, View x, int lanes) { start(); copy<T>(dst, x, lanes); }

PLAIN_TYPE(f32, float)
PLAIN_TYPE(f16, half)
PLAIN_TYPE(bf16, __nv_bfloat16)
