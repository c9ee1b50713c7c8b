//! What a run left, and how close it is to what it should have left.

use super::store::Setup;
use crate::error::{Error, Result};
use crate::graph::{CacheId, Graph, Op, Origin, Tensor};
use crate::quant::DType;

/// Bits of the outputs, and the caches after the run.
#[derive(Clone)]
pub struct Outcome {
    /// By number of the output, at full width.
    pub outputs: Vec<Vec<u32>>,
    /// By number of the cache.
    pub caches: Vec<Vec<u8>>,
}

impl Outcome {
    /// That `other` has the same bits wherever a tensor of `graph` is live.
    ///
    /// # Errors
    /// It has not: where.
    pub fn same_bits(&self, other: &Outcome, graph: &Graph, setup: &Setup) -> Result<()> {
        for (at, &id) in graph.outputs.iter().enumerate() {
            let live = live_indices(graph.get(id), setup);
            let (a, b) = (&self.outputs[at], &other.outputs[at]);
            if let Some(i) = live.into_iter().find(|&i| a[i] != b[i]) {
                return Err(Error::input(format!("other bits, value {i} first")));
            }
        }
        match self.caches == other.caches {
            true => Ok(()),
            false => Err(Error::input("other bits in the cache")),
        }
    }
}

/// Indices of the values of a contiguous tensor that are not cut off.
pub(super) fn live_indices(t: &Tensor, setup: &Setup) -> Vec<usize> {
    let n = t.n_values();
    let Some(live) = t.live else {
        return (0..n).collect();
    };
    let count = setup.counts.iter().find(|c| c.0 == live.count);
    let count = count.map_or(0, |c| c.1);
    let stride: usize = t.ne[..live.dim].iter().product();
    (0..n)
        .filter(|i| i / stride % t.ne[live.dim] < count)
        .collect()
}

/// Normalised mean squared error: sum (a - b)^2 / sum b^2, with the worst value.
fn close(pairs: impl Iterator<Item = (usize, f64, f64)>, most: f64) -> Result<f64> {
    let (mut error, mut size) = (0.0, 0.0);
    let (mut n, mut numbers) = (0usize, 0usize);
    let mut worst = (0.0, String::new());
    for (i, want, got) in pairs {
        n += 1;
        numbers += usize::from(!want.is_nan());
        let equal = match most == 0.0 {
            true => want.to_bits() == got.to_bits(),
            false => want == got,
        };
        if equal || (want.is_nan() && got.is_nan()) {
            size += if want.is_finite() { want * want } else { 0.0 };
            continue;
        }
        let off = (want - got).abs();
        // Not a number where there should be one, or the wrong infinity.
        if !off.is_finite() || most == 0.0 {
            return Err(Error::input(format!("value {i} is {got:e}, want {want:e}")));
        }
        error += off * off;
        size += want * want;
        if off > worst.0 {
            worst = (off, format!("value {i} is {got:e}, want {want:e}"));
        }
    }
    if n > 0 && numbers == 0 {
        return Err(Error::input("there is nothing but NaN to compare"));
    }
    let nmse = if error == 0.0 { 0.0 } else { error / size };
    match nmse <= most {
        true => Ok(nmse),
        false => Err(Error::input(format!(
            "NMSE {nmse:.2e}, at most {most:.0e}; worst: {}",
            worst.1
        ))),
    }
}

fn float(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// Compares live values of one output.
fn compare(t: &Tensor, setup: &Setup, nmse: f64, want: &[u32], got: &[u32]) -> Result<f64> {
    // Ids first, then bits of weights.
    let ids = match t.origin {
        Origin::Op(Op::MoeRoute { n_used, .. }) => n_used,
        _ if t.dtype == DType::I32 => t.ne[0],
        _ => 0,
    };
    let live = live_indices(t, setup);
    for &i in live.iter().filter(|&&i| i % t.ne[0] < ids) {
        if want[i] != got[i] {
            let (got, want) = (got[i] as i32, want[i] as i32);
            return Err(Error::input(format!("value {i} is {got}, want {want}")));
        }
    }
    let floats = live.into_iter().filter(|i| i % t.ne[0] >= ids);
    close(floats.map(|i| (i, float(want[i]), float(got[i]))), nmse)
}

/// Values of a cache.
fn decoded(dtype: DType, bytes: &[u8]) -> Result<Vec<f64>> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
    dtype.dequantize_row(bytes, &mut values)?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Compares the content of a cache: close where the CPU wrote, else not touched.
fn compare_cache(t: &Tensor, nmse: f64, [before, want, got]: [&[u8]; 3]) -> Result<f64> {
    let row_bytes = t.nb[1];
    let rows = |bytes| <[u8]>::chunks_exact(bytes, row_bytes);
    for (r, ((before, want), got)) in rows(before).zip(rows(want)).zip(rows(got)).enumerate() {
        if before == want && got != want {
            return Err(Error::input(format!("cell {r} was written")));
        }
    }
    let (want, got) = (decoded(t.dtype, want)?, decoded(t.dtype, got)?);
    let values = want.into_iter().zip(got).enumerate();
    close(values.map(|(i, (want, got))| (i, want, got)), nmse)
}

/// Says where an error was found.
pub(super) fn within(place: String) -> impl FnOnce(Error) -> Error {
    move |error| Error::input(format!("{place}: {error}"))
}

/// Compares an outcome with the reference; gives the largest error.
///
/// # Errors
/// A value is too far off, or a cell was written that should not be.
pub(super) fn compare_all(
    nmse: f64,
    graph: &Graph,
    setup: &Setup,
    before: &[Vec<u8>],
    want: &Outcome,
    got: &Outcome,
) -> Result<f64> {
    let mut most = 0.0f64;
    for (at, &id) in graph.outputs.iter().enumerate() {
        let t = graph.get(id);
        let (want, got) = (&want.outputs[at], &got.outputs[at]);
        let error = compare(t, setup, nmse, want, got);
        most = most.max(error.map_err(within(format!("output {at}")))?);
    }
    for t in &graph.tensors {
        if let Origin::Cache(CacheId(c)) = t.origin {
            let contents = [&before[c], &want.caches[c], &got.caches[c]];
            let error = compare_cache(t, nmse, contents.map(Vec::as_slice));
            most = most.max(error.map_err(within(format!("cache {c}")))?);
        }
    }
    Ok(most)
}
