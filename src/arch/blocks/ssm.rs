//! Mixers with a recurrent state: Mamba (arXiv 2312.00752) and Mamba-2 (arXiv
//! 2405.21060). Both convolve along the tokens, scan, and gate what comes out.

use super::{linear, rms_norm};
use crate::arch::hparams::{MOST_HEADS, MOST_WIDTH};
use crate::arch::{CacheShape, Hparams, Keys, Recurrent};
use crate::error::{Error, Result};
use crate::graph::recurrent::MOST_STATE;
use crate::graph::{
    Builder, CacheId, CacheKind, GluKind, Input, Op, SsmConv, SsmScan, TensorId, UnaryKind,
};

/// Taps of a convolution; files have 4.
pub(super) const MOST_TAPS: usize = 16;

/// What is done with dt, B and C of [`Mamba`] before they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    None,
    /// RMS norm.
    Plain,
    /// RMS norm times `ssm_dt_norm`, `ssm_b_norm`, `ssm_c_norm`.
    Weighted,
}

/// Sizes of a Mamba mixer, whose heads are single channels.
#[derive(Debug, Clone, Copy)]
pub struct Mamba {
    pub state: Recurrent,
    pub dt_rank: usize,
    pub norms: Norms,
}

/// Sizes of a Mamba-2 mixer.
#[derive(Debug, Clone, Copy)]
pub struct Mamba2 {
    pub state: Recurrent,
    /// Heads of a group share B and C.
    pub n_group: usize,
}

/// The size under `key`, which must be there, within `least ..= most`.
pub(super) fn size(keys: &Keys<'_>, key: &str, least: usize, most: usize) -> Result<usize> {
    match keys.size(key, most)? {
        value if value < least => Err(damaged(keys, format!("{key} is {value}, below {least}"))),
        value => Ok(value),
    }
}

pub(super) fn damaged(keys: &Keys<'_>, cause: String) -> Error {
    let fix = "the file is damaged; fetch it again";
    Error::file(keys.meta.path(), format!("{}.{cause}", keys.arch), fix)
}

/// Depthwise convolution of `x [channels, n]` along the tokens, then SiLU.
pub(super) fn conv(
    g: &mut Builder<'_>,
    state: &Recurrent,
    cache: &CacheShape,
    il: usize,
    x: TensorId,
) -> Result<TensorId> {
    let (d_conv, channels) = (state.d_conv, state.n_channels);
    let w = g.weight(&format!("blk.{il}.ssm_conv1d.weight"), &[d_conv, channels])?;
    let shape = [channels, d_conv - 1, cache.n_slots];
    let kept = g.states(CacheId::of(il, CacheKind::Conv), &shape)?;
    let ids = g.input(Input::StateSlots, 0);
    let rows = g.input(Input::SeqRows, 0);
    let mut y = g.op(Op::SsmConv(SsmConv::default()), &[x, w, kept, ids, rows])?;
    if let Some(bias) = g.weight_opt(&format!("blk.{il}.ssm_conv1d.bias"), &[channels])? {
        y = g.add(y, bias)?;
    }
    let y = g.unary(UnaryKind::Silu, y)?;
    Ok(g.name(y, "conv", Some(il)))
}

/// Operands of a scan beside the state.
struct Scanned {
    x: TensorId,
    dt: TensorId,
    a: TensorId,
    b: TensorId,
    c: TensorId,
}

/// The scan of `x [head_dim, n_head, n]`.
fn scan(
    g: &mut Builder<'_>,
    state: &Recurrent,
    cache: &CacheShape,
    il: usize,
    s: &Scanned,
) -> Result<TensorId> {
    let shape = [state.d_state, state.head_dim, state.n_head, cache.n_slots];
    let kept = g.states(CacheId::of(il, CacheKind::State), &shape)?;
    let ids = g.input(Input::StateSlots, 0);
    let rows = g.input(Input::SeqRows, 0);
    let operands = [kept, s.x, s.dt, s.a, s.b, s.c, ids, rows];
    let y = g.op(Op::SsmScan(SsmScan::default()), &operands)?;
    Ok(g.name(y, "scan", Some(il)))
}

/// `count` rows of `len` values each, from value `start` of each row of x on.
pub(super) fn rows_of(
    g: &mut Builder<'_>,
    x: TensorId,
    start: usize,
    [len, count]: [usize; 2],
) -> Result<TensorId> {
    let part = g.slice(x, 0, start, len * count)?;
    g.split_rows(part, [len, count])
}

impl Mamba {
    /// Reads the sizes.
    ///
    /// # Errors
    /// A key is missing, or is no size that a model can have.
    pub fn read(keys: &Keys<'_>, norms: Norms) -> Result<Mamba> {
        let d_inner = size(keys, "ssm.inner_size", 1, MOST_WIDTH)?;
        Ok(Mamba {
            state: Recurrent {
                d_conv: size(keys, "ssm.conv_kernel", 2, MOST_TAPS)?,
                n_channels: d_inner,
                d_state: size(keys, "ssm.state_size", 1, MOST_STATE)?,
                head_dim: 1,
                n_head: d_inner,
            },
            dt_rank: size(keys, "ssm.time_step_rank", 1, MOST_WIDTH)?,
            norms,
        })
    }

    fn norm(
        &self,
        g: &mut Builder<'_>,
        hp: &Hparams,
        il: usize,
        x: TensorId,
        name: &str,
    ) -> Result<TensorId> {
        match self.norms {
            Norms::None => Ok(x),
            Norms::Plain => g.op(Op::RmsNorm { eps: hp.norm_eps }, &[x]),
            Norms::Weighted => rms_norm(g, x, &format!("blk.{il}.{name}.weight"), hp.norm_eps),
        }
    }

    /// The mixer of layer `il` for `h [n_embd, n]`; gives the output projection.
    pub fn mixer(
        &self,
        g: &mut Builder<'_>,
        hp: &Hparams,
        cache: &CacheShape,
        il: usize,
        h: TensorId,
    ) -> Result<TensorId> {
        let (d_inner, d_state) = (self.state.n_head, self.state.d_state);
        let (n, dt_rank) = (g.width.n_tokens, self.dt_rank);
        let xz = linear(g, h, &format!("blk.{il}.ssm_in"), 2 * d_inner)?;
        let x = g.slice(xz, 0, 0, d_inner)?;
        let z = g.slice(xz, 0, d_inner, d_inner)?;
        let x = conv(g, &self.state, cache, il, x)?;
        let dt_b_c = linear(g, x, &format!("blk.{il}.ssm_x"), dt_rank + 2 * d_state)?;
        let dt = g.slice(dt_b_c, 0, 0, dt_rank)?;
        let dt = self.norm(g, hp, il, dt, "ssm_dt_norm")?;
        // Products read rows without gaps.
        let dt = g.cont(dt)?;
        let dt = linear(g, dt, &format!("blk.{il}.ssm_dt"), d_inner)?;
        let part = |g: &mut Builder<'_>, start, name: &str| {
            let part = g.slice(dt_b_c, 0, start, d_state)?;
            let part = self.norm(g, hp, il, part, name)?;
            g.split_rows(part, [d_state, 1])
        };
        let b = part(g, dt_rank, "ssm_b_norm")?;
        let c = part(g, dt_rank + d_state, "ssm_c_norm")?;
        let a = g.weight(&format!("blk.{il}.ssm_a"), &[d_state, d_inner])?;
        let scanned = Scanned {
            x: g.split_rows(x, [1, d_inner])?,
            dt,
            a,
            b,
            c,
        };
        let y = scan(g, &self.state, cache, il, &scanned)?;
        let y = g.reshape(y, &[d_inner, n])?;
        let d = g.weight(&format!("blk.{il}.ssm_d"), &[d_inner])?;
        let skip = g.mul(x, d)?;
        let y = g.add(y, skip)?;
        let y = g.glu(GluKind::Swiglu, z, y)?;
        let y = linear(g, y, &format!("blk.{il}.ssm_out"), hp.n_embd)?;
        Ok(g.name(y, "ssm_out", Some(il)))
    }
}

impl Mamba2 {
    /// Reads the sizes.
    ///
    /// # Errors
    /// A key is missing, or is no size that a model can have.
    pub fn read(keys: &Keys<'_>) -> Result<Mamba2> {
        let d_inner = size(keys, "ssm.inner_size", 1, MOST_WIDTH)?;
        let d_state = size(keys, "ssm.state_size", 1, MOST_STATE)?;
        let n_head = size(keys, "ssm.time_step_rank", 1, MOST_HEADS)?;
        let n_group = keys.size_or("ssm.group_count", MOST_HEADS, 1)?;
        if !d_inner.is_multiple_of(n_head) || !n_head.is_multiple_of(n_group) {
            let sizes = format!("{d_inner} values, {n_head} heads and {n_group} groups");
            return Err(damaged(keys, format!("ssm: {sizes} do not divide")));
        }
        Ok(Mamba2 {
            state: Recurrent {
                d_conv: size(keys, "ssm.conv_kernel", 2, MOST_TAPS)?,
                n_channels: d_inner + 2 * n_group * d_state,
                d_state,
                head_dim: d_inner / n_head,
                n_head,
            },
            n_group,
        })
    }

    /// The mixer of layer `il` for `h [n_embd, n]`; gives the output projection.
    pub fn mixer(
        &self,
        g: &mut Builder<'_>,
        hp: &Hparams,
        cache: &CacheShape,
        il: usize,
        h: TensorId,
    ) -> Result<TensorId> {
        let Recurrent {
            n_channels,
            d_state,
            head_dim,
            n_head,
            ..
        } = self.state;
        let (n, n_group, d_inner) = (g.width.n_tokens, self.n_group, head_dim * n_head);
        let width = d_inner + n_channels + n_head;
        let z_xbc_dt = linear(g, h, &format!("blk.{il}.ssm_in"), width)?;
        let z = g.slice(z_xbc_dt, 0, 0, d_inner)?;
        let xbc = g.slice(z_xbc_dt, 0, d_inner, n_channels)?;
        let dt = g.slice(z_xbc_dt, 0, d_inner + n_channels, n_head)?;
        let dt_bias = g.weight(&format!("blk.{il}.ssm_dt.bias"), &[n_head])?;
        let xbc = conv(g, &self.state, cache, il, xbc)?;
        let x = rows_of(g, xbc, 0, [head_dim, n_head])?;
        let scanned = Scanned {
            x,
            dt: g.add(dt, dt_bias)?,
            a: g.weight(&format!("blk.{il}.ssm_a"), &[1, n_head])?,
            b: rows_of(g, xbc, d_inner, [d_state, n_group])?,
            c: rows_of(g, xbc, d_inner + d_state * n_group, [d_state, n_group])?,
        };
        let y = scan(g, &self.state, cache, il, &scanned)?;
        let d = g.weight(&format!("blk.{il}.ssm_d"), &[1, n_head])?;
        let skip = g.mul(x, d)?;
        let y = g.add(y, skip)?;
        let y = g.reshape(y, &[d_inner, n])?;
        let y = g.glu(GluKind::Swiglu, z, y)?;
        let y = self.group_norm(g, hp, il, y)?;
        let y = linear(g, y, &format!("blk.{il}.ssm_out"), hp.n_embd)?;
        Ok(g.name(y, "ssm_out", Some(il)))
    }

    /// RMS norm over each group of `y [d_inner, n]`, where the file has one.
    fn group_norm(
        &self,
        g: &mut Builder<'_>,
        hp: &Hparams,
        il: usize,
        y: TensorId,
    ) -> Result<TensorId> {
        let (d_inner, n) = (self.state.head_dim * self.state.n_head, g.width.n_tokens);
        let group = [d_inner / self.n_group, self.n_group];
        let Some(weight) = g.weight_opt(&format!("blk.{il}.ssm_norm.weight"), &group)? else {
            return Ok(y);
        };
        let y = g.reshape(y, &[group[0], group[1], n])?;
        let y = g.op(Op::RmsNorm { eps: hp.norm_eps }, &[y])?;
        let y = g.mul(y, weight)?;
        g.reshape(y, &[d_inner, n])
    }
}
