//! Choosing the next token from its logits.
//!
//! A [`Chain`] of [`Sampler`]s narrows a list of candidates in the order users
//! of llama.cpp know: penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p,
//! XTC, temperature, dist. The last one leaves a single candidate. Samplers know
//! ids, logits and the tokens' bytes only.

mod candidates;
mod chain;
mod dist;
mod dry;
mod grammar;
mod greedy;
mod min_p;
mod mirostat;
mod order;
mod params;
mod penalties;
mod rng;
mod set;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod vocabulary;
mod xtc;

pub use candidates::{Candidate, Candidates};
pub use chain::Chain;
pub use dry::DryParams;
pub use grammar::{Grammar, GrammarSource};
pub use order::SamplerKind;
pub use params::SamplingParams;
pub use set::parse_bias;
pub use vocabulary::Vocabulary;

/// One step of a chain.
pub trait Sampler: Send {
    /// Name and settings, as shown by [`Chain::describe`].
    fn describe(&self) -> String;

    /// Changes, drops or selects candidates; never drops the last one.
    fn apply(&mut self, candidates: &mut Candidates);

    /// Takes note of a token that became part of the text.
    fn accept(&mut self, _id: u32) {}

    /// Forgets accepted tokens and starts the random sequence over.
    fn reset(&mut self) {
        self.forget();
    }

    /// Forgets the accepted tokens; random numbers go on.
    fn forget(&mut self) {}
}
