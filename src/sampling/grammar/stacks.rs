//! Where a text may be in its grammar: a set of places, each with the places to return
//! to below it.
//!
//! A set holds each state once, with the set of what lies below it, so that stacks
//! with a common part share it and their number never grows beyond states times
//! depth. Equal sets have one number: a step from a set by a byte is worked out once,
//! then looked up, which makes the grammar an automaton that is built while it runs.

use super::program::{Edge, Program, State};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Number of a set.
pub(super) type SetId = u32;

/// The set without any place: no text goes on here.
pub(super) const DEAD: SetId = 0;
/// Stands in a set for the end of the whole text.
const END: State = State::MAX;
/// Not worked out yet.
const UNKNOWN: SetId = SetId::MAX;

/// Rules within rules: a text may nest no deeper. It also bounds the recursion below.
const MAX_DEPTH: u32 = 1000;
/// Places (8 bytes each) and rows of steps (1 KiB each) at which [`Stacks::tidy`] starts
/// afresh.
const TIDY_PLACES: usize = 500_000;
const TIDY_ROWS: usize = 8_000;
/// Never exceeded.
const MAX_PLACES: usize = 10_000_000;
const MAX_ROWS: usize = 32_000;

/// What a set consists of: states, ascending, and the set below each.
type Places = Arc<[(State, SetId)]>;

/// All sets so far.
pub(super) struct Stacks {
    sets: Vec<Places>,
    /// Places above each other, at most.
    depths: Vec<u32>,
    numbers: HashMap<Places, SetId>,
    unions: HashMap<(SetId, SetId), SetId>,
    /// By set, what each byte leads to.
    rows: Vec<Option<Box<[SetId; 256]>>>,
    n_rows: usize,
    /// In all sets.
    n_places: usize,
}

/// Work that may still be done, in edges and places looked at.
pub(super) struct Budget(pub u64);

/// The budget is used up, or the memory.
pub(super) struct TooMuch;

impl Budget {
    fn spend(&mut self, n: usize) -> Result<(), TooMuch> {
        self.0 = self.0.checked_sub(n as u64 + 1).ok_or(TooMuch)?;
        Ok(())
    }
}

impl Stacks {
    pub fn new() -> Stacks {
        let mut stacks = Stacks {
            sets: Vec::new(),
            depths: Vec::new(),
            numbers: HashMap::new(),
            unions: HashMap::new(),
            rows: Vec::new(),
            n_rows: 0,
            n_places: 0,
        };
        stacks.push(Arc::from([]), 0);
        stacks
    }

    /// The set at the beginning of the text.
    pub fn begin(&mut self, program: &Program, budget: &mut Budget) -> Result<SetId, TooMuch> {
        let bottom = self.number([(END, DEAD)].into())?;
        self.closure(program, vec![(program.root, bottom)], budget)
    }

    /// Whether the text may end here.
    pub fn may_end(&self, set: SetId) -> bool {
        let last = self.sets[set as usize].last();
        last.is_some_and(|(state, _)| *state == END)
    }

    /// Where `byte` leads; [`DEAD`]: it may not come here.
    pub fn step(
        &mut self,
        program: &Program,
        set: SetId,
        byte: u8,
        budget: &mut Budget,
    ) -> Result<SetId, TooMuch> {
        if set == DEAD {
            return Ok(DEAD);
        }
        if let Some(row) = &self.rows[set as usize]
            && row[byte as usize] != UNKNOWN
        {
            return Ok(row[byte as usize]);
        }
        let mut next = Vec::new();
        for &(state, below) in self.sets[set as usize].iter().filter(|p| p.0 != END) {
            for edge in &program.edges[state as usize] {
                match *edge {
                    Edge::Byte { low, high, to } if (low..=high).contains(&byte) => {
                        next.push((to, below));
                    }
                    _ => {}
                }
            }
        }
        let to = self.closure(program, next, budget)?;
        if self.rows[set as usize].is_none() && self.n_rows < MAX_ROWS {
            self.rows[set as usize] = Some(Box::new([UNKNOWN; 256]));
            self.n_rows += 1;
        }
        if let Some(row) = &mut self.rows[set as usize] {
            row[byte as usize] = to;
        }
        Ok(to)
    }

    /// All places that these lead to without a byte, but only those that read one.
    fn closure(
        &mut self,
        program: &Program,
        mut work: Vec<(State, SetId)>,
        budget: &mut Budget,
    ) -> Result<SetId, TooMuch> {
        let mut reached: BTreeMap<State, SetId> = BTreeMap::new();
        while let Some((state, below)) = work.pop() {
            let known = reached.get(&state).copied();
            let below = match known {
                Some(known) => self.union(known, below, budget)?,
                None => below,
            };
            if known == Some(below) {
                continue;
            }
            reached.insert(state, below);
            let edges = match state {
                END => &[],
                _ => &program.edges[state as usize][..],
            };
            budget.spend(edges.len())?;
            for edge in edges {
                match *edge {
                    Edge::Goto(to) => work.push((to, below)),
                    // Nothing but returns would follow: straight to what is below.
                    Edge::Call { rule, back } if program.only_returns[back as usize] => {
                        work.push((rule, below));
                    }
                    Edge::Call { rule, back } if self.depths[below as usize] < MAX_DEPTH => {
                        work.push((rule, self.number([(back, below)].into())?));
                    }
                    Edge::Return => {
                        budget.spend(self.sets[below as usize].len())?;
                        work.extend(self.sets[below as usize].iter());
                    }
                    Edge::Call { .. } | Edge::Byte { .. } => {}
                }
            }
        }
        let reads = |state: State| {
            let mut edges = program.edges[state as usize].iter();
            edges.any(|edge| matches!(edge, Edge::Byte { .. }))
        };
        let places = reached.into_iter();
        let places = places.filter(|&(state, _)| state == END || reads(state));
        let places: Vec<(State, SetId)> = places.collect();
        self.number(places.into())
    }

    /// The set with the stacks of both. Recursive, at most [`MAX_DEPTH`] deep.
    fn union(&mut self, a: SetId, b: SetId, budget: &mut Budget) -> Result<SetId, TooMuch> {
        let key = (a.min(b), a.max(b));
        if a == b {
            return Ok(a);
        }
        if let Some(&known) = self.unions.get(&key) {
            return Ok(known);
        }
        let places = [a, b].map(|set| self.sets[set as usize].clone());
        budget.spend(places[0].len() + places[1].len())?;
        let mut all: BTreeMap<State, SetId> = places[0].iter().copied().collect();
        for &(state, below) in places[1].iter() {
            let both = match all.get(&state) {
                Some(&other) => self.union(other, below, budget)?,
                None => below,
            };
            all.insert(state, both);
        }
        let all: Vec<(State, SetId)> = all.into_iter().collect();
        let union = self.number(all.into())?;
        self.unions.insert(key, union);
        Ok(union)
    }

    /// The number of a set, an old one where there is an equal one.
    fn number(&mut self, places: Places) -> Result<SetId, TooMuch> {
        if let Some(&known) = self.numbers.get(&places) {
            return Ok(known);
        }
        if self.n_places >= MAX_PLACES {
            return Err(TooMuch);
        }
        let below = places.iter().map(|p| self.depths[p.1 as usize]).max();
        Ok(self.push(places, below.map_or(0, |depth| depth + 1)))
    }

    fn push(&mut self, places: Places, depth: u32) -> SetId {
        let number = self.sets.len() as SetId;
        // At least one, for the set itself takes room too.
        self.n_places += places.len() + 1;
        self.numbers.insert(places.clone(), number);
        self.sets.push(places);
        self.depths.push(depth);
        self.rows.push(None);
        number
    }

    /// Where too much has gathered, forgets all but `set`, whose new number it returns;
    /// other numbers mean nothing then.
    pub fn tidy(&mut self, set: SetId) -> Option<SetId> {
        if self.n_places < TIDY_PLACES && self.n_rows < TIDY_ROWS {
            return None;
        }
        // What lies below has a lower number: one walk down finds all, one up copies.
        let mut used = vec![false; self.sets.len()];
        used[set as usize] = true;
        for number in (0..=set as usize).rev().filter(|&n| n > 0) {
            if used[number] {
                let places = self.sets[number].iter();
                places.for_each(|place| used[place.1 as usize] = true);
            }
        }
        let mut fresh = Stacks::new();
        let mut new_numbers = vec![DEAD; self.sets.len()];
        for number in (1..=set as usize).filter(|&n| used[n]) {
            let places = self.sets[number].iter();
            let places = places.map(|&(state, below)| (state, new_numbers[below as usize]));
            let places: Vec<(State, SetId)> = places.collect();
            new_numbers[number] = fresh.push(places.into(), self.depths[number]);
        }
        *self = fresh;
        Some(new_numbers[set as usize])
    }
}
