//! The chain of samplers behind one `sample` call.

use super::candidates::Candidates;
use super::dist::Dist;
use super::dry::Dry;
use super::grammar::{Mask, Matcher};
use super::greedy::{Greedy, argmax, max_except};
use super::min_p::MinP;
use super::mirostat::{Mirostat, Version};
use super::penalties::Penalties;
use super::temperature::{DynamicTemperature, Temperature};
use super::top_k::TopK;
use super::top_n_sigma::TopNSigma;
use super::top_p::TopP;
use super::typical::Typical;
use super::xtc::Xtc;
use super::{Sampler, SamplerKind, SamplingParams, rng};
use crate::error::{Error, Result};
use std::sync::Arc;

/// Samplers in order; the last leaves one candidate.
pub struct Chain {
    samplers: Vec<Box<dyn Sampler>>,
    seed: Option<u64>,
    /// Ascending.
    banned: Vec<u32>,
    /// Added to logits; finite.
    bias: Vec<(u32, f32)>,
    grammar: Option<Matcher>,
    /// The last choice, until it is accepted.
    chosen: Option<u32>,
    candidates: Candidates,
}

impl Chain {
    /// Builds the chain, without the samplers whose settings change nothing.
    ///
    /// At temperature 0 only what changes logits (penalties, DRY) comes before the
    /// best one is taken; so before mirostat, with the temperature.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(params: &SamplingParams) -> Result<Chain> {
        params.check()?;
        let greedy = params.temp <= 0.0;
        let in_use = params.seed.unwrap_or_else(rng::random_seed);
        let mut samplers: Vec<Box<dyn Sampler>> = Vec::new();
        for &kind in &params.samplers {
            let runs = match kind {
                SamplerKind::Penalties | SamplerKind::Dry => true,
                SamplerKind::Temperature => !greedy,
                _ => !greedy && params.mirostat == 0,
            };
            if runs && let Some(sampler) = sampler(kind, params, in_use)? {
                samplers.push(sampler);
            }
        }
        let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
        samplers.push(match params.mirostat {
            _ if greedy => Box::new(Greedy),
            0 => Box::new(Dist::new(in_use)),
            1 => Box::new(Mirostat::new(Version::One, tau, eta, in_use)),
            _ => Box::new(Mirostat::new(Version::Two, tau, eta, in_use)),
        });
        let without = params.logit_bias.iter().filter(|b| b.1.is_infinite());
        let mut banned = params.banned.clone();
        banned.extend(without.map(|&(id, _)| id));
        banned.sort_unstable();
        banned.dedup();
        let bias = params.logit_bias.iter().filter(|b| b.1.is_finite());
        Ok(Chain {
            samplers,
            seed: (!greedy).then_some(in_use),
            banned,
            bias: bias.copied().collect(),
            grammar: params.grammar.clone().map(Matcher::new).transpose()?,
            chosen: None,
            candidates: Candidates::default(),
        })
    }

    /// The seed in use, also one that was drawn; `None` for a greedy chain.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// True when the chain draws nothing at random.
    pub fn is_greedy(&self) -> bool {
        self.seed.is_none()
    }

    /// True when the highest logit is chosen whatever the others are, so that
    /// [`Chain::choice`] serves in place of [`Chain::sample`].
    pub fn is_argmax(&self) -> bool {
        self.is_plain_greedy() && self.banned.is_empty()
    }

    /// True when the highest logit is chosen, banned ids left out.
    fn is_plain_greedy(&self) -> bool {
        let plain = self.bias.is_empty() && self.grammar.is_none();
        plain && self.samplers.len() == 1 && self.is_greedy()
    }

    /// The choice of a chain that [`Chain::is_argmax`], where `argmax` was found
    /// elsewhere; `None`: the highest logit is no finite number.
    pub fn choice(&self, argmax: Option<u32>) -> Result<u32> {
        argmax.ok_or_else(|| {
            Error::input(
                "sampling: the highest logit is no finite number; the model's weights are \
                 damaged or an op overflowed, try --exact",
            )
        })
    }

    /// Chooses a token from `logits: [n_vocab]`; the caller may [`Chain::accept`] it.
    ///
    /// # Errors
    /// A logit that is NaN or `+inf`, or no token that is possible and fits the grammar.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        check_logits(logits)?;
        if self.is_plain_greedy() {
            return argmax(logits, &self.banned).ok_or_else(nothing_left);
        }
        let mask = self.mask()?;
        self.candidates.fill(logits);
        if let Some(mask) = &mask {
            self.candidates.keep(0, |c| mask.has(c.id));
        }
        self.candidates.ban(&self.banned);
        if self.candidates.max_logit() == f32::NEG_INFINITY {
            return Err(match mask {
                Some(_) => nothing_fits(),
                None => nothing_left(),
            });
        }
        let bias = self.bias.iter().copied();
        self.candidates.adjust(bias, |logit, bias| logit + bias);
        for sampler in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        self.chosen = self.candidates.items.first().map(|c| c.id);
        self.chosen.ok_or_else(nothing_left)
    }

    /// The tokens that the grammar allows; `None` without one.
    fn mask(&mut self) -> Result<Option<Arc<Mask>>> {
        let Some(grammar) = &mut self.grammar else {
            return Ok(None);
        };
        grammar.mask().map(Some)
    }

    /// Tells every sampler that this token is now part of the text. The grammar holds
    /// for those that were chosen here, not for a prompt's.
    pub fn accept(&mut self, id: u32) {
        self.samplers.iter_mut().for_each(|s| s.accept(id));
        let chosen = self.chosen.take() == Some(id);
        if chosen && let Some(grammar) = &mut self.grammar {
            grammar.accept(id);
        }
    }

    /// Whether the text so far may end here; always so without a grammar.
    pub fn is_whole(&self) -> bool {
        self.grammar.as_ref().is_none_or(Matcher::may_end)
    }

    /// Back to the state after [`Chain::new`], with the same seed.
    pub fn reset(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.reset());
        self.chosen = None;
        if let Some(grammar) = &mut self.grammar {
            grammar.reset();
        }
    }

    /// Forgets the accepted tokens, which may be told once more with other ones before
    /// them; random numbers and the text that the grammar holds go on.
    pub fn forget(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.forget());
        self.chosen = None;
    }

    /// The samplers in order with their settings, on one line.
    pub fn describe(&self) -> String {
        let banned = match self.banned.len() {
            0 => None,
            1 => Some("without 1 token".to_string()),
            n => Some(format!("without {n} tokens")),
        };
        let bias = match self.bias.len() {
            0 => None,
            1 => Some("bias on 1 token".to_string()),
            n => Some(format!("bias on {n} tokens")),
        };
        let parts = self.samplers.iter().map(|s| s.describe());
        let grammar = self.grammar.as_ref().map(|_| "grammar".to_string());
        let before = grammar.into_iter().chain(banned).chain(bias);
        let parts: Vec<String> = before.chain(parts).collect();
        parts.join(", ")
    }
}

/// One sampler; `None` when its settings change nothing.
fn sampler(
    kind: SamplerKind,
    params: &SamplingParams,
    seed: u64,
) -> Result<Option<Box<dyn Sampler>>> {
    fn when<S: Sampler + 'static>(on: bool, sampler: S) -> Option<Box<dyn Sampler>> {
        on.then(|| Box::new(sampler) as Box<dyn Sampler>)
    }
    let min_keep = params.min_keep;
    Ok(match kind {
        SamplerKind::Penalties => Penalties::new(params).and_then(|s| when(true, s)),
        SamplerKind::Dry => Dry::new(params)?.and_then(|s| when(true, s)),
        SamplerKind::TopNSigma => when(params.top_n_sigma > 0.0, TopNSigma(params.top_n_sigma)),
        SamplerKind::TopK => when(
            params.top_k > 0,
            TopK(usize::try_from(params.top_k).unwrap_or_default()),
        ),
        SamplerKind::Typical => {
            let p = params.typical_p;
            when(p < 1.0, Typical { p, min_keep })
        }
        SamplerKind::TopP => {
            let p = params.top_p;
            when(p < 1.0, TopP { p, min_keep })
        }
        SamplerKind::MinP => {
            let p = params.min_p;
            when(p > 0.0, MinP { p, min_keep })
        }
        SamplerKind::Xtc => {
            let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
            let on = probability > 0.0 && threshold <= 0.5;
            when(on, Xtc::new(probability, threshold, min_keep, seed))
        }
        SamplerKind::Temperature if params.dynatemp_range > 0.0 => {
            let dynamic = DynamicTemperature {
                temp: params.temp,
                range: params.dynatemp_range,
                exponent: params.dynatemp_exponent,
            };
            when(true, dynamic)
        }
        SamplerKind::Temperature => when(params.temp != 1.0, Temperature(params.temp)),
    })
}

fn nothing_left() -> Error {
    Error::input(
        "sampling: every logit is -inf or its token banned, so no token can be chosen; \
         the model's weights are damaged or the banned ids too many",
    )
}

fn nothing_fits() -> Error {
    Error::input(
        "sampling: no token that the grammar lets come next is possible: the vocabulary has \
         no token for it, the text is nested too deep, or the tokens are banned",
    )
}

/// Rejects NaN, `+inf` and an empty row.
fn check_logits(logits: &[f32]) -> Result<()> {
    // Branch-free, so that it vectorises; the culprit is looked for only on error.
    let any_nan = logits.iter().fold(false, |any, l| any | l.is_nan());
    if !any_nan && max_except(logits, &[]) < f32::INFINITY {
        return Ok(());
    }
    let bad = logits
        .iter()
        .position(|l| l.is_nan() || *l == f32::INFINITY);
    let id = bad.unwrap_or_default();
    Err(Error::input(format!(
        "sampling: the logit of token {id} is {}, not a number; \
         the model's weights are damaged or an op overflowed, try --exact",
        logits.get(id).copied().unwrap_or(f32::NAN)
    )))
}

#[cfg(test)]
mod tests;
