//! GET_ROWS, SET_ROWS, CONT, CPY.

use super::super::kernel::{Answer, Arg, Kernel, Node, n_rows};
use super::grids;
use crate::graph::{Origin, Tensor};
use crate::quant::DType;

/// Threads that unpack one row of a weight.
const WEIGHT_ROW_THREADS: u32 = 128;

pub fn get_rows(node: &Node<'_>) -> Option<Answer> {
    let table = node.src[0];
    let args = [Arg::Dst, Arg::Src(0), Arg::Src(1)];
    if table.origin == Origin::Weight {
        let entry = format!("get_rows_{}", table.dtype.name());
        let grid = [n_rows(node.dst), 1, 1];
        return Some(
            Kernel::new(entry, grid, WEIGHT_ROW_THREADS)
                .args(args)
                .into(),
        );
    }
    let entry = format!("get_rows_plain_{}", plain(table.dtype)?);
    Some(grids::map(entry, node.dst, args).into())
}

pub fn set_rows(node: &Node<'_>) -> Option<Answer> {
    let entry = format!("set_rows_{}", plain(node.dst.dtype)?);
    let args = [Arg::Dst, Arg::Src(1), Arg::Src(2)];
    Some(grids::map(entry, node.src[1], args).into())
}

pub fn cont(node: &Node<'_>) -> Option<Answer> {
    copy(node)
}

/// One launch for each operand.
pub fn concat(node: &Node<'_>) -> Option<Answer> {
    let mut first = 0;
    let one = |(i, x): (usize, &&Tensor)| {
        let args = [Arg::Dst, Arg::Src(i), Arg::I32(first as i32)];
        first += x.ne[0];
        grids::map("concat", x, args)
    };
    Some(Answer {
        kernels: node.src.iter().enumerate().map(one).collect(),
        scratch_bytes: 0,
    })
}

pub fn cpy(node: &Node<'_>) -> Option<Answer> {
    copy(node)
}

fn copy(node: &Node<'_>) -> Option<Answer> {
    let entry = format!("copy_{}", plain(node.dst.dtype)?);
    Some(grids::map(entry, node.dst, [Arg::Dst, Arg::Src(0)]).into())
}

/// Name of a float type in the kernels of `rows.cu`.
fn plain(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::{Op, Tensor};

    fn get_rows_of(table: &Tensor) -> Option<Kernel> {
        let ids = tensor([70_000, 1, 1, 1]);
        let dst = tensor([table.ne[0], 70_000, 1, 1]);
        let node = Node {
            op: Op::GetRows,
            dst: &dst,
            src: vec![table, &ids],
            exact: false,
            rows_beside: 0,
        };
        get_rows(&node).map(|answer| answer.kernels[0].clone())
    }

    #[test]
    fn weights_are_unpacked_one_block_a_row() {
        let table = Tensor {
            dtype: DType::Q4K,
            origin: Origin::Weight,
            ..tensor([256, 1000, 1, 1])
        };
        let kernel = get_rows_of(&table).expect("every type of weights");
        assert_eq!(kernel.entry, "get_rows_Q4_K");
        assert_eq!((kernel.grid, kernel.block), ([70_000, 1, 1], 128));
    }

    #[test]
    fn other_tables_are_plain() {
        let mut table = tensor([256, 1000, 1, 1]);
        for (dtype, entry) in [
            (DType::F32, Some("get_rows_plain_f32")),
            (DType::BF16, Some("get_rows_plain_bf16")),
            (DType::Q4K, None),
        ] {
            table.dtype = dtype;
            let kernel = get_rows_of(&table);
            assert_eq!(kernel.map(|k| k.entry).as_deref(), entry);
        }
    }
}
