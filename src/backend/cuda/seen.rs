//! What a bound launch was given, read again: kernels that take other launches in look at
//! their operands.

/// Words of a `View` (`cuda-kernels/common.cuh`).
pub const VIEW: usize = 9;

/// Words of a `VecJob` (`mul_mat_vec.cuh`): W, W2, x, norm, ids, b, y, then three numbers.
pub const VEC_JOB: usize = 7 * VIEW + 2;

/// View `at` of arguments that begin with views.
pub fn view_at(words: &[u64], at: usize) -> Seen<'_> {
    Seen(&words[at * VIEW..(at + 1) * VIEW])
}

/// A `View` as words.
pub struct Seen<'a>(pub &'a [u64]);

impl Seen<'_> {
    pub fn data(&self) -> u64 {
        self.0[0]
    }

    /// Address of the live count, when it cuts the rows or nothing is cut (then 0).
    pub fn live(&self) -> Option<u64> {
        let dim = self.0[8] as u32 as i32;
        (dim == -1 || dim == 1).then_some(if dim == 1 { self.0[1] } else { 0 })
    }

    pub fn nb(&self, dim: usize) -> u64 {
        self.0[2 + dim]
    }

    pub fn ne(&self, dim: usize) -> u32 {
        (self.0[6 + dim / 2] >> (32 * (dim % 2))) as u32
    }

    pub fn dtype(&self) -> u64 {
        self.0[8] >> 32
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::quant::DType;

    /// The words of a view, cut along its rows.
    pub fn view(data: u64, ne: [u64; 4], live: Option<u64>, dtype: DType) -> [u64; VIEW] {
        let dim = if live.is_some() {
            1
        } else {
            u64::from(u32::MAX)
        };
        let dtype = dtype.id() as u64;
        let (low, high) = (ne[0] | ne[1] << 32, ne[2] | ne[3] << 32);
        [
            data,
            live.unwrap_or(0),
            4,
            4,
            4,
            4,
            low,
            high,
            dim | dtype << 32,
        ]
    }
}
