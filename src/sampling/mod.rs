//! Choosing the next token from its logits.
//!
//! A [`Chain`] of [`Sampler`]s narrows a list of candidates in the order users
//! of llama.cpp know: penalties, top-k, top-p, min-p, temperature, dist. The
//! last one leaves a single candidate. Samplers know ids and logits only.

mod candidates;
mod chain;
mod dist;
mod greedy;
mod min_p;
mod params;
mod penalties;
mod rng;
mod set;
mod temperature;
mod top_k;
mod top_p;

pub use candidates::{Candidate, Candidates};
pub use chain::Chain;
pub use params::SamplingParams;

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
