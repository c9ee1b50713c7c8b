//! ROPE, HEAD_ROWS.

use super::super::kernel::{Answer, Arg, Node};
use super::grids;
use crate::graph::{HeadRows, Origin, RopeMode, RopeParams};

pub fn rope(node: &Node<'_>, params: &RopeParams) -> Option<Answer> {
    let params = HeadRows {
        norm_eps: None,
        rope: Some(*params),
        factors: node.src.len() > 2,
        store: false,
    };
    head_rows(node, &params)
}

pub fn head_rows(node: &Node<'_>, params: &HeadRows) -> Option<Answer> {
    let mut next = 1;
    let mut operand = |there: bool| {
        if !there {
            return Arg::NoView;
        }
        next += 1;
        Arg::Src(next - 1)
    };
    let weight = operand(params.norm_eps.is_some());
    let pos = operand(params.rope.is_some());
    let factors = operand(params.rope.is_some() && params.factors);
    // The cache comes in between; it is the result.
    let slots = match params.store {
        true => Arg::Src(params.cache_at() + 1),
        false => Arg::NoView,
    };
    let mut args = vec![Arg::Dst, Arg::Src(0), weight, pos, factors, slots];
    args.extend(rope_args(params));
    args.push(Arg::I32(i32::from(is_early(node, &args[3..6]))));
    Some(
        grids::warps("head_rows", node.src[0])
            .args(args)
            .job()
            .into(),
    )
}

/// Whether the operands among `args` were there before the first kernel of a step.
fn is_early(node: &Node<'_>, args: &[Arg]) -> bool {
    args.iter().all(|arg| match arg {
        Arg::Src(i) => matches!(node.src[*i].origin, Origin::Input(_) | Origin::Weight),
        _ => true,
    })
}

/// Coefficients, eps, n_rot, neox, magnitude.
fn rope_args(params: &HeadRows) -> [Arg; 5] {
    let rope = params.rope;
    let neox = rope.is_some_and(|r| r.mode == RopeMode::Neox);
    [
        Arg::Rope(rope),
        Arg::F32(params.norm_eps.unwrap_or(0.0)),
        Arg::I32(rope.map_or(0, |r| r.n_rot) as i32),
        Arg::I32(i32::from(neox)),
        Arg::F32(rope.map_or(1.0, |r| r.magnitude() as f32)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::{Input, Op};

    fn params() -> RopeParams {
        RopeParams {
            mode: RopeMode::Neox,
            n_rot: 64,
            freq_base: 10_000.0,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 4096,
        }
    }

    /// The six views of the launch for every set of optional operands.
    #[test]
    fn operands_stand_where_the_op_says() {
        let x = tensor([64, 8, 5, 1]);
        for bits in 0..16 {
            let has = |bit: i32| bits >> bit & 1 == 1;
            let h = HeadRows {
                norm_eps: has(0).then_some(1e-6),
                rope: has(1).then(params),
                factors: has(1) && has(2),
                store: has(3),
            };
            let node = Node {
                op: Op::HeadRows(h),
                dst: &x,
                src: vec![&x; 8],
                exact: false,
                rows_beside: 0,
            };
            let kernel = head_rows(&node, &h).expect("always supported").kernels;
            let args = &kernel[0].args;
            let mut want = 1;
            for (arg, there) in args[2..5].iter().zip([has(0), has(1), h.factors]) {
                let expected = if there { Arg::Src(want) } else { Arg::NoView };
                assert_eq!(*arg, expected, "{h:?}");
                want += usize::from(there);
            }
            let slots = if has(3) {
                Arg::Src(want + 1)
            } else {
                Arg::NoView
            };
            assert_eq!(args[5], slots, "{h:?}");
            assert_eq!(args[6], Arg::Rope(h.rope), "coefficients follow the views");
        }
    }

    /// What another kernel writes may not be read before the wait.
    #[test]
    fn only_inputs_and_weights_are_read_early() {
        let x = tensor([64, 8, 5, 1]);
        let mut pos = tensor([5, 1, 1, 1]);
        for (origin, early) in [
            (Origin::Input(Input::Pos), 1),
            (Origin::Weight, 1),
            (Origin::View { offset_bytes: 0 }, 0),
            (Origin::Op(Op::Cont), 0),
        ] {
            let told = format!("{origin:?}");
            pos.origin = origin;
            let node = Node {
                op: Op::Rope(params()),
                dst: &x,
                src: vec![&x, &pos],
                exact: false,
                rows_beside: 0,
            };
            let kernel = rope(&node, &params()).expect("always supported").kernels;
            assert_eq!(kernel[0].args.last(), Some(&Arg::I32(early)), "{told}");
        }
    }
}
