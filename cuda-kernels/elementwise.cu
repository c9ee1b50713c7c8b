// UNARY, GLU, ADD, MUL, DIV, SCALE: one value in, one value out, on strided rows.
//
//   unary_<f>    dst[k, ..] = f(x[k, ..])
//   glu_<f>      dst[k, ..] = f(gate[k, ..]) * up[k, ..]; without `up` gate is
//                [2k, ..] and its second half is up
//   binary_<op>  dst[k, ..] = a[k, ..] op b, b repeating where it has 1
//   scale        dst[k, ..] = x[k, ..] * factor + bias
//
// All f32, rows contiguous, other strides free. Grid and `lanes` as in map.cuh.
#include "map.cuh"
#include "math.cuh"

// Row `at.i*` of b, whose dimensions of 1 repeat.
__device__ __forceinline__ const float* repeated_row(const View& b, RowIndex at) {
    return row_of<const float>(b, b.ne[1] == 1 ? 0 : at.i1, b.ne[2] == 1 ? 0 : at.i2,
                               b.ne[3] == 1 ? 0 : at.i3);
}

template <typename F>
__device__ __forceinline__ void unary(const View& dst, const View& x, int lanes, F f) {
    const Place p = place(lanes);
    if (p.row >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, p.row);
    if (!is_live(dst, at)) return;
    const float* a = row_of<const float>(x, at.i1, at.i2, at.i3);
    // The second operand is not used; any readable row does.
    map_row(row_of<float>(dst, at.i1, at.i2, at.i3), a, a, false, dim(dst, 0), p,
            [=](float v, float) { return f(v); });
}

template <typename F>
__device__ __forceinline__ void glu(const View& dst, const View& gate, const View& up, int lanes, F f) {
    const Place p = place(lanes);
    if (p.row >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, p.row);
    if (!is_live(dst, at)) return;
    const float* g = row_of<const float>(gate, at.i1, at.i2, at.i3);
    const float* u = up.data ? row_of<const float>(up, at.i1, at.i2, at.i3) : g + dst.ne[0];
    map_row(row_of<float>(dst, at.i1, at.i2, at.i3), g, u, false, dim(dst, 0), p,
            [=](float v, float w) { return f(v) * w; });
}

template <typename F>
__device__ __forceinline__ void binary(const View& dst, const View& a, const View& b, int lanes, F f) {
    const Place p = place(lanes);
    if (p.row >= n_rows(dst)) return;
    const RowIndex at = row_index(dst, p.row);
    if (!is_live(dst, at)) return;
    map_row(row_of<float>(dst, at.i1, at.i2, at.i3), row_of<const float>(a, at.i1, at.i2, at.i3),
            repeated_row(b, at), b.ne[0] == 1, dim(dst, 0), p, f);
}

#define UNARY(name, F) \
    extern "C" __global__ void unary_##name(View dst, View x, int lanes) { start(); unary(dst, x, lanes, F()); }
#define GLU(name, F)                                                                 \
    extern "C" __global__ void glu_##name(View dst, View gate, View up, int lanes) { \
        start();                                                                     \
        glu(dst, gate, up, lanes, F());                                              \
    }
#define BINARY(name, op)                                                            \
    extern "C" __global__ void binary_##name(View dst, View a, View b, int lanes) { \
        start();                                                                    \
        binary(dst, a, b, lanes, [](float x, float y) { return x op y; });          \
    }

UNARY(silu, Silu)
UNARY(gelu, Gelu)
UNARY(gelu_quick, GeluQuick)
UNARY(gelu_erf, GeluErf)
UNARY(relu, Relu)
UNARY(relu_sqr, ReluSqr)
UNARY(sigmoid, Sigmoid)
UNARY(tanh, Tanh)
UNARY(softplus, Softplus)
UNARY(exp, Exp)

GLU(silu, Silu)
GLU(gelu, Gelu)
GLU(gelu_quick, GeluQuick)
GLU(gelu_erf, GeluErf)
GLU(relu, Relu)

BINARY(add, +)
BINARY(mul, *)
BINARY(div, /)

extern "C" __global__ void scale(View dst, View x, float factor, float bias, int lanes) {
    start();
    unary(dst, x, lanes, [=](float v) { return v * factor + bias; });
}
