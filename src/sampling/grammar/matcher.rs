//! Which tokens a grammar lets come next.

use super::Grammar;
use super::stacks::{Budget, DEAD, SetId, Stacks, TooMuch};
use crate::error::{Error, Result};
use crate::sampling::Vocabulary;
use std::collections::HashMap;
use std::sync::Arc;

/// Work for the tokens of one step, in edges looked at: about a second.
const MAX_WORK: u64 = 30_000_000;
/// Masks that are remembered; each takes a bit a token.
const MAX_MASKS: usize = 64;

/// A bit for each token.
pub(in crate::sampling) struct Mask(Vec<u64>);

impl Mask {
    fn new(n_vocab: usize) -> Mask {
        Mask(vec![0; n_vocab.div_ceil(64)])
    }

    fn set(&mut self, id: u32) {
        if let Some(word) = self.0.get_mut(id as usize / 64) {
            *word |= 1 << (id % 64);
        }
    }

    /// Whether this token may come.
    pub fn has(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / 64).copied().unwrap_or_default();
        word >> (id % 64) & 1 == 1
    }
}

/// The tokens in the order of their bytes, so that those with a common beginning are
/// together.
#[derive(Debug)]
pub(super) struct SortedTokens {
    ids: Vec<u32>,
    /// Bytes that each has in common with the one before it.
    common: Vec<usize>,
}

impl SortedTokens {
    /// Without those that have no bytes, and those that end a text.
    pub fn new(vocabulary: &Vocabulary) -> SortedTokens {
        let ids = 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
        let ids = ids.filter(|&id| !vocabulary.piece(id).is_empty() && !vocabulary.is_eog(id));
        let mut ids: Vec<u32> = ids.collect();
        ids.sort_unstable_by_key(|&id| vocabulary.piece(id));
        let mut before: &[u8] = &[];
        let common = ids.iter().map(|&id| {
            let piece = vocabulary.piece(id);
            let same = before.iter().zip(piece).take_while(|(a, b)| a == b).count();
            before = piece;
            same
        });
        let common = common.collect();
        SortedTokens { ids, common }
    }
}

/// A text on its way through a grammar.
pub(in crate::sampling) struct Matcher {
    grammar: Arc<Grammar>,
    stacks: Stacks,
    /// Where the text is.
    at: SetId,
    masks: HashMap<SetId, Arc<Mask>>,
    /// A token took more work than there may be.
    exhausted: bool,
}

impl Matcher {
    /// At the beginning of a text.
    pub fn new(grammar: Arc<Grammar>) -> Result<Matcher> {
        let mut stacks = Stacks::new();
        let at = stacks.begin(&grammar.program, &mut Budget(MAX_WORK));
        Ok(Matcher {
            grammar,
            at: at.map_err(too_much)?,
            stacks,
            masks: HashMap::new(),
            exhausted: false,
        })
    }

    /// Back to the beginning of a text.
    pub fn reset(&mut self) {
        match Matcher::new(self.grammar.clone()) {
            Ok(fresh) => *self = fresh,
            Err(_) => self.exhausted = true,
        }
    }

    /// The tokens that may come next; those that end the text where it may end.
    ///
    /// # Errors
    /// The grammar is too ambiguous to be followed.
    pub fn mask(&mut self) -> Result<Arc<Mask>> {
        if self.exhausted {
            return Err(too_much(TooMuch));
        }
        if let Some(mask) = self.masks.get(&self.at) {
            return Ok(mask.clone());
        }
        if let Some(at) = self.stacks.tidy(self.at) {
            self.at = at;
            self.masks.clear();
        }
        if self.masks.len() == MAX_MASKS {
            self.masks.clear();
        }
        let mask = Arc::new(self.new_mask().map_err(too_much)?);
        self.masks.insert(self.at, mask.clone());
        Ok(mask)
    }

    fn new_mask(&mut self) -> std::result::Result<Mask, TooMuch> {
        let Grammar {
            program,
            vocabulary,
            tokens,
            ..
        } = &*self.grammar;
        let mut mask = Mask::new(vocabulary.len());
        if self.stacks.may_end(self.at) {
            vocabulary.eog_ids().iter().for_each(|&id| mask.set(id));
        }
        let mut budget = Budget(MAX_WORK);
        // Where the bytes of the token lead, as far as they are allowed.
        let mut path = vec![self.at];
        for (&id, &common) in tokens.ids.iter().zip(&tokens.common) {
            // The byte that was not allowed before is in this token too.
            if common >= path.len() {
                continue;
            }
            path.truncate(common + 1);
            let mut whole = true;
            for &byte in &vocabulary.piece(id)[common..] {
                let at = path.last().copied().unwrap_or(DEAD);
                let next = self.stacks.step(program, at, byte, &mut budget)?;
                if next == DEAD {
                    whole = false;
                    break;
                }
                path.push(next);
            }
            if whole {
                mask.set(id);
            }
        }
        Ok(mask)
    }

    /// Whether the text so far is a whole one.
    pub fn may_end(&self) -> bool {
        !self.exhausted && self.stacks.may_end(self.at)
    }

    /// Takes a token into the text. After one that the mask does not hold none fits.
    pub fn accept(&mut self, id: u32) {
        let Grammar {
            program,
            vocabulary,
            ..
        } = &*self.grammar;
        if vocabulary.is_eog(id) {
            return;
        }
        let mut budget = Budget(MAX_WORK);
        for &byte in vocabulary.piece(id) {
            match self.stacks.step(program, self.at, byte, &mut budget) {
                Ok(next) => self.at = next,
                Err(TooMuch) => self.exhausted = true,
            }
        }
    }
}

fn too_much(_: TooMuch) -> Error {
    Error::input(
        "grammar: too many ways to read the text so far; write the rules so that fewer of \
         them can stand for the same text",
    )
}
