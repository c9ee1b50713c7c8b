//! Runs the segments of a split graph in order.

use super::split::{Border, Source, Split};
use crate::backend::{Backend, Executable};
use crate::error::Result;
use crate::graph::{Count, Graph, Input, Plan};

impl Split {
    /// Replaces each segment's graph by what its device's backend wants to run.
    pub fn lower(&mut self, backends: &[Box<dyn Backend>]) {
        for segment in &mut self.segments {
            segment.graph = backends[segment.device].lower(&segment.graph);
        }
    }

    /// Graphs of the segments on one device.
    pub fn graphs_on(&self, device: usize) -> Vec<&Graph> {
        let on = self.segments.iter().filter(|s| s.device == device);
        on.map(|s| &s.graph).collect()
    }
}

/// Compiles the lowered segments; a single one is the executable itself.
pub fn compile(split: Split, backends: &[Box<dyn Backend>]) -> Result<Box<dyn Executable>> {
    let Split {
        segments,
        borders,
        results,
    } = split;
    let mut readers = vec![Vec::new(); borders.len()];
    let mut runs = Vec::new();
    for (at, segment) in segments.into_iter().enumerate() {
        let plan = Plan::new(&segment.graph);
        runs.push(backends[segment.device].compile(segment.graph, plan)?);
        for number in segment.reads {
            readers[number].push(at);
        }
    }
    let in_order = (0..).zip(&results).all(|(i, r)| r.output == i);
    if in_order
        && runs.len() == 1
        && let Some(run) = runs.pop()
    {
        return Ok(run);
    }
    Ok(Box::new(SplitExecutable {
        runs,
        borders,
        readers,
        kept: vec![Vec::new(); results.len()],
        results,
        counts: Vec::new(),
        moved: Vec::new(),
    }))
}

/// Segments bound to memory, and what they hand on to each other.
struct SplitExecutable {
    runs: Vec<Box<dyn Executable>>,
    borders: Vec<Border>,
    /// By border: segments that read it.
    readers: Vec<Vec<usize>>,
    results: Vec<Source>,
    /// By result: its values, where a later segment may run over them.
    kept: Vec<Vec<f32>>,
    counts: Vec<(Count, usize)>,
    /// Values on their way, as bits.
    moved: Vec<i32>,
}

impl SplitExecutable {
    /// Values of a border that have to be moved.
    fn n_moved(&self, border: &Border) -> usize {
        let rows = border.row.and_then(|(row, count)| {
            let set = self.counts.iter().find(|(c, _)| *c == count);
            set.map(|(_, n)| n * row)
        });
        rows.unwrap_or(border.n_values).min(border.n_values)
    }

    /// Hands on what segment `at` has computed, before another segment of its
    /// device uses the same compute buffer.
    fn hand_on(&mut self, at: usize) -> Result<()> {
        for number in 0..self.borders.len() {
            let border = self.borders[number];
            if border.from.segment != at {
                continue;
            }
            let n = self.n_moved(&border);
            let values = &self.runs[at].output(border.from.output)[..n];
            self.moved.clear();
            self.moved.extend(values.iter().map(|v| v.to_bits() as i32));
            for &reader in &self.readers[number] {
                self.runs[reader].set_input(Input::Border(number), &self.moved)?;
            }
        }
        if at + 1 < self.runs.len() {
            for (result, kept) in self.results.iter().zip(&mut self.kept) {
                if result.segment == at {
                    kept.clear();
                    kept.extend_from_slice(self.runs[at].output(result.output));
                }
            }
        }
        Ok(())
    }
}

impl Executable for SplitExecutable {
    fn set_input(&mut self, input: Input, data: &[i32]) -> Result<()> {
        let mut runs = self.runs.iter_mut();
        runs.try_for_each(|run| run.set_input(input, data))
    }

    fn set_count(&mut self, count: Count, n: usize) {
        self.runs.iter_mut().for_each(|r| r.set_count(count, n));
        self.counts.retain(|(c, _)| *c != count);
        self.counts.push((count, n));
    }

    fn run(&mut self) -> Result<()> {
        for at in 0..self.runs.len() {
            self.runs[at].run()?;
            self.hand_on(at)?;
        }
        Ok(())
    }

    fn output(&self, index: usize) -> &[f32] {
        let result = self.results[index];
        if result.segment + 1 == self.runs.len() {
            return self.runs[result.segment].output(result.output);
        }
        &self.kept[index]
    }

    fn compute_bytes(&self) -> usize {
        self.runs.iter().map(|r| r.compute_bytes()).sum()
    }
}
