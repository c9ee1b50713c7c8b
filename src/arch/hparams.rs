//! Hyperparameters that models share, read from their own keys.

use super::keys::Keys;
use crate::error::{Error, Result};
use crate::graph::{Catalog, RopeMode, RopeParams};

/// Bounds that no model comes near; they keep products of sizes far from
/// overflow and allocations bounded.
const MOST_LAYERS: usize = 4096;
pub const MOST_WIDTH: usize = 1 << 20;
pub const MOST_HEADS: usize = 4096;
pub const MOST_EXPERTS: usize = 4096;
const MOST_CONTEXT: usize = 1 << 30;

/// Sizes and constants of a model.
#[derive(Debug, Clone)]
pub struct Hparams {
    pub n_vocab: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_ctx_train: usize,
    /// By layer.
    pub n_head: Vec<usize>,
    /// By layer.
    pub n_head_kv: Vec<usize>,
    pub head_dim_k: usize,
    pub head_dim_v: usize,
    /// By layer.
    pub n_ff: Vec<usize>,
    pub n_expert: usize,
    pub n_expert_used: usize,
    pub n_ff_expert: usize,
    pub norm_eps: f32,
    pub rope: RopeParams,
    /// Positions a sliding-window layer sees.
    pub window: Option<u32>,
    /// Which layers slide.
    pub swa: Vec<bool>,
    /// By layer: the state that it carries from token to token.
    pub recurrent: Vec<Option<Recurrent>>,
}

/// Sizes of a layer's recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recurrent {
    /// Taps of the convolution.
    pub d_conv: usize,
    /// Channels of the convolution.
    pub n_channels: usize,
    /// Values of a state row.
    pub d_state: usize,
    /// Rows of a head.
    pub head_dim: usize,
    pub n_head: usize,
}

impl Recurrent {
    /// Values of a sequence's convolution state.
    pub fn n_conv(&self) -> usize {
        self.n_channels * (self.d_conv - 1)
    }

    /// Values of a sequence's scan state.
    pub fn n_state(&self) -> usize {
        self.d_state * self.head_dim * self.n_head
    }
}

/// What the user asked of RoPE; `None` keeps what the file says.
#[derive(Debug, Clone, Copy, Default)]
pub struct RopeOverrides {
    pub freq_base: Option<f32>,
    pub freq_scale: Option<f32>,
    pub scaling: Option<RopeScaling>,
    pub ext_factor: Option<f32>,
    pub attn_factor: Option<f32>,
    pub beta_fast: Option<f32>,
    pub beta_slow: Option<f32>,
    pub orig_ctx: Option<u32>,
}

/// `--rope-scaling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    None,
    Linear,
    Yarn,
}

impl Hparams {
    /// Reads the keys all transformers share.
    pub fn read(
        keys: &Keys<'_>,
        catalog: &dyn Catalog,
        mode: RopeMode,
        user: &RopeOverrides,
    ) -> Result<Hparams> {
        let heads = Heads::read(keys)?;
        heads.check(keys, false)?;
        Self::read_rest(keys, catalog, mode, user, heads)
    }

    /// As [`Hparams::read`], of a model that has layers without attention: 0 KV heads.
    pub fn read_hybrid(
        keys: &Keys<'_>,
        catalog: &dyn Catalog,
        mode: RopeMode,
        user: &RopeOverrides,
    ) -> Result<Hparams> {
        let heads = Heads::read(keys)?;
        heads.check(keys, true)?;
        Self::read_rest(keys, catalog, mode, user, heads)
    }

    /// As [`Hparams::read`], of a model without attention, whose layers keep `state`.
    pub fn read_recurrent(
        keys: &Keys<'_>,
        catalog: &dyn Catalog,
        user: &RopeOverrides,
        state: Recurrent,
    ) -> Result<Hparams> {
        let n_layer = keys.size("block_count", MOST_LAYERS)?;
        // What a file says of heads means nothing.
        let heads = Heads {
            n_head: vec![0; n_layer],
            n_head_kv: vec![0; n_layer],
        };
        let mut hp = Self::read_rest(keys, catalog, RopeMode::Norm, user, heads)?;
        hp.set_recurrent(state, |_, _| true);
        Ok(hp)
    }

    /// Layers for which `keeps` holds carry `state` from token to token.
    pub fn set_recurrent(&mut self, state: Recurrent, keeps: fn(&Hparams, usize) -> bool) {
        let layers = 0..self.n_layer;
        self.recurrent = layers.map(|il| keeps(self, il).then_some(state)).collect();
    }

    fn read_rest(
        keys: &Keys<'_>,
        catalog: &dyn Catalog,
        mode: RopeMode,
        user: &RopeOverrides,
        Heads { n_head, n_head_kv }: Heads,
    ) -> Result<Hparams> {
        let n_embd = keys.size("embedding_length", MOST_WIDTH)?;
        let n_layer = n_head.len();
        let first = n_head.iter().find(|&&n| n > 0).unwrap_or(&1);
        let head_dim = keys.size_or("attention.key_length", MOST_WIDTH, n_embd / first)?;
        let n_ctx_train = keys.size("context_length", MOST_CONTEXT)?;
        let embd = catalog
            .weight("token_embd.weight")
            .ok_or_else(|| catalog.weight_error("token_embd.weight", &[n_embd], None))?;
        let n_expert = keys.size_or("expert_count", MOST_EXPERTS, 0)?;
        let n_expert_used = keys.size_or("expert_used_count", MOST_EXPERTS, 0)?;
        if n_expert_used > n_expert || (n_expert > 0 && n_expert_used == 0) {
            return Err(Error::file(
                keys.meta.path(),
                format!("{n_expert_used} of {n_expert} experts in use"),
                "the file is damaged; fetch it again",
            ));
        }
        Ok(Hparams {
            n_vocab: embd.1[1],
            n_embd,
            n_layer,
            n_ctx_train,
            head_dim_k: head_dim,
            head_dim_v: keys.size_or("attention.value_length", MOST_WIDTH, head_dim)?,
            n_ff: keys
                .per_layer("feed_forward_length", n_layer, MOST_WIDTH)?
                .unwrap_or(vec![0; n_layer]),
            n_expert,
            n_expert_used,
            n_ff_expert: keys.size_or("expert_feed_forward_length", MOST_WIDTH, 0)?,
            norm_eps: keys
                .positive("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
            rope: rope(keys, mode, head_dim, n_ctx_train, user)?,
            window: None,
            swa: vec![false; n_layer],
            recurrent: vec![None; n_layer],
            n_head,
            n_head_kv,
        })
    }

    /// Reads the sliding window: every `period`-th layer sees everything,
    /// unless the file says which layers slide.
    pub fn read_window(&mut self, keys: &Keys<'_>, period: usize) -> Result<()> {
        self.window = keys.u32("attention.sliding_window")?;
        if self.window.is_none() {
            return Ok(());
        }
        let key = "attention.sliding_window_pattern";
        let pattern = keys.per_layer(key, self.n_layer, MOST_LAYERS)?;
        let is_array = matches!(
            keys.meta.get(&format!("{}.{key}", keys.arch)),
            Some(crate::gguf::Value::Array(..))
        );
        self.swa = match pattern {
            Some(slides) if is_array => slides.iter().map(|&s| s != 0).collect(),
            Some(period) => slide(self.n_layer, period[0]),
            None => slide(self.n_layer, period),
        };
        Ok(())
    }

    /// Values of a K row of a layer.
    pub fn n_embd_k(&self, il: usize) -> usize {
        self.head_dim_k * self.n_head_kv[il]
    }

    /// Values of a V row of a layer.
    pub fn n_embd_v(&self, il: usize) -> usize {
        self.head_dim_v * self.n_head_kv[il]
    }
}

/// Heads by layer.
struct Heads {
    n_head: Vec<usize>,
    n_head_kv: Vec<usize>,
}

impl Heads {
    fn read(keys: &Keys<'_>) -> Result<Heads> {
        let n_layer = keys.size("block_count", MOST_LAYERS)?;
        let per_layer = |key| keys.per_layer(key, n_layer, MOST_HEADS);
        let n_head = per_layer("attention.head_count")?
            .ok_or_else(|| keys.missing("attention.head_count"))?;
        let n_head_kv = per_layer("attention.head_count_kv")?.unwrap_or_else(|| n_head.clone());
        Ok(Heads { n_head, n_head_kv })
    }

    /// `may_lack`: layers without attention have 0 KV heads.
    fn check(&self, keys: &Keys<'_>, may_lack: bool) -> Result<()> {
        for (&h, &kv) in self.n_head.iter().zip(&self.n_head_kv) {
            let lacks = may_lack && kv == 0;
            if !lacks && (h == 0 || kv == 0 || h % kv != 0) {
                return Err(Error::file(
                    keys.meta.path(),
                    format!("{h} heads cannot share {kv} KV heads"),
                    "the file is damaged; fetch it again",
                ));
            }
        }
        Ok(())
    }
}

/// All layers slide but the last of each `period`.
fn slide(n_layer: usize, period: usize) -> Vec<bool> {
    (0..n_layer)
        .map(|il| period > 0 && il % period < period - 1)
        .collect()
}

/// RoPE from the file's keys, then from the user's flags.
fn rope(
    keys: &Keys<'_>,
    mode: RopeMode,
    head_dim: usize,
    n_ctx_train: usize,
    user: &RopeOverrides,
) -> Result<RopeParams> {
    let n_rot = keys.size_or("rope.dimension_count", head_dim, head_dim)?;
    let scaling = match (user.scaling, keys.str("rope.scaling.type")?) {
        (Some(scaling), _) => scaling,
        (None, Some("yarn")) => RopeScaling::Yarn,
        (None, Some("none")) => RopeScaling::None,
        (None, _) => RopeScaling::Linear,
    };
    let factor = match keys.f32("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.f32("rope.scale_linear")?,
    };
    let freq_scale = match (scaling, user.freq_scale) {
        (RopeScaling::None, _) => 1.0,
        (_, Some(scale)) => scale,
        (_, None) => 1.0 / factor.unwrap_or(1.0),
    };
    let yarn = if scaling == RopeScaling::Yarn {
        1.0
    } else {
        0.0
    };
    let file_or = |key: &str, default: f32| keys.f32(key).map(|v| v.unwrap_or(default));
    let mut attn_factor = file_or("rope.scaling.attn_factor", 1.0)?;
    // Files with this key keep YaRN's magnitude out of sine and cosine.
    if let Some(log_mul) = keys.f32("rope.scaling.yarn_log_multiplier")?
        && yarn != 0.0
    {
        attn_factor /= 1.0 + 0.1 * log_mul * (1.0 / freq_scale).ln();
    }
    let params = RopeParams {
        mode,
        n_rot: n_rot / 2 * 2,
        freq_base: match user.freq_base {
            Some(base) => base,
            None => keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
        },
        freq_scale,
        ext_factor: match user.ext_factor {
            Some(v) => v,
            None => file_or("rope.scaling.yarn_ext_factor", yarn)?,
        },
        attn_factor: attn_factor * user.attn_factor.unwrap_or(1.0),
        beta_fast: match user.beta_fast {
            Some(v) => v,
            None => file_or("rope.scaling.yarn_beta_fast", 32.0)?,
        },
        beta_slow: match user.beta_slow {
            Some(v) => v,
            None => file_or("rope.scaling.yarn_beta_slow", 1.0)?,
        },
        n_ctx_orig: match user.orig_ctx {
            Some(v) => v,
            None => keys
                .u32("rope.scaling.original_context_length")?
                .unwrap_or(n_ctx_train as u32),
        },
    };
    check_rope(keys, &params)?;
    Ok(params)
}

/// Attention takes scores that are NaN for masked ones, so such a RoPE would
/// give wrong answers instead of none.
fn check_rope(keys: &Keys<'_>, params: &RopeParams) -> Result<()> {
    let above_0 = |v: f32| v.is_finite() && v > 0.0;
    for (name, value, good) in [
        (
            "rope-freq-base",
            params.freq_base,
            above_0 as fn(f32) -> bool,
        ),
        ("rope-freq-scale", params.freq_scale, above_0),
        ("yarn-ext-factor", params.ext_factor, f32::is_finite),
        ("yarn-attn-factor", params.attn_factor, f32::is_finite),
        ("yarn-beta-fast", params.beta_fast, above_0),
        ("yarn-beta-slow", params.beta_slow, above_0),
    ] {
        if !good(value) {
            return Err(Error::file(
                keys.meta.path(),
                format!("RoPE with {name} {value}, which is no number or not above 0"),
                format!("give another --{name}"),
            ));
        }
    }
    Ok(())
}
