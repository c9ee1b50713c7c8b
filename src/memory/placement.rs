//! What the user said about devices, and the placement of graphs that follows.

use crate::backend::Device;
use crate::backend::sched::{self, HOST, Placed, Rules, Split};
use crate::error::{Error, Result};
use crate::graph::{CacheId, Graph, Op, TensorId};
use fancy_regex::Regex;
use std::collections::{BTreeSet, HashMap};

/// Number of the device that layers are offloaded to.
pub const OFFLOAD: usize = 1;

/// Layers on the GPU: the output counts as one and comes first, then the last
/// layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLayers {
    /// All that fits.
    Auto,
    All,
    Count(usize),
}

/// `--override-tensor`: weights whose names match lie on a device.
#[derive(Debug, Clone)]
pub struct TensorOverride {
    pub regex: Regex,
    pub device: Device,
}

/// Which devices take part, and who holds what.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The device beside the CPU.
    pub offload: Option<Device>,
    pub layers: GpuLayers,
    /// The first that matches a name counts.
    pub overrides: Vec<TensorOverride>,
    /// `--n-cpu-moe`: layers, the first ones, whose experts stay on the CPU where no
    /// override names them; `None`: as many as the planner finds.
    pub n_cpu_moe: Option<usize>,
}

impl Placement {
    /// Everything on the CPU.
    pub fn cpu() -> Placement {
        Placement {
            offload: None,
            layers: GpuLayers::Count(0),
            overrides: Vec::new(),
            n_cpu_moe: None,
        }
    }

    /// Devices by number; [`HOST`] is the CPU, [`OFFLOAD`] the one beside it.
    pub fn devices(&self) -> Vec<Device> {
        std::iter::once(Device::Cpu).chain(self.offload).collect()
    }

    /// True where the user has not said which experts stay on the host; who names tensors
    /// has decided about experts too.
    pub fn may_move_experts(&self) -> bool {
        self.n_cpu_moe.is_none() && self.overrides.is_empty()
    }

    /// Device number of every weight that an override names.
    ///
    /// # Errors
    /// A regex that takes too long, or a device that takes no part.
    pub fn overridden<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<HashMap<String, usize>> {
        let devices = self.devices();
        let mut numbers = Vec::new();
        for rule in &self.overrides {
            // The number of the last: a CPU may stand in for a GPU (tests).
            let number = devices.iter().rposition(|d| *d == rule.device);
            numbers.push(number.ok_or_else(|| not_in_use(rule, &devices))?);
        }
        let mut found = HashMap::new();
        let mut used = vec![false; numbers.len()];
        for name in names {
            for (at, rule) in self.overrides.iter().enumerate() {
                let matches = rule.regex.is_match(name).map_err(|e| {
                    let regex = rule.regex.as_str();
                    Error::input(format!(
                        "--override-tensor: {regex:?} on {name}: {e}; give a simpler regex"
                    ))
                })?;
                if matches {
                    used[at] = true;
                    found.insert(name.to_string(), numbers[at]);
                    break;
                }
            }
        }
        for (rule, _) in self.overrides.iter().zip(used).filter(|(_, used)| !used) {
            let regex = rule.regex.as_str();
            tracing::warn!("--override-tensor: {regex:?} is the first to match no weight");
        }
        Ok(found)
    }
}

fn not_in_use(rule: &TensorOverride, devices: &[Device]) -> Error {
    let known: Vec<String> = devices.iter().map(Device::to_string).collect();
    Error::input(format!(
        "--override-tensor: {:?} names {}, which is not in use (see llama-rs devices); in use: {}",
        rule.regex.as_str(),
        rule.device,
        known.join(", ")
    ))
}

/// The layer that a weight belongs to.
pub fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// True for matrices of which each token reads those of a few experts.
pub fn is_expert(name: &str) -> bool {
    name.contains("_exps.")
}

/// Where weights and caches lie, and so where nodes run.
#[derive(Debug, Clone)]
pub struct Schedule {
    devices: Vec<Device>,
    n_layer: usize,
    /// Offloaded layers; the output is one of them.
    n_offloaded: usize,
    /// Layers whose experts stay on the host.
    n_cpu_moe: usize,
    overridden: HashMap<String, usize>,
    caches: HashMap<CacheId, usize>,
    /// Because of whom caches lie on the host.
    refused: BTreeSet<String>,
}

impl Schedule {
    /// The schedule of a model of `n_layer` layers of which `n_offloaded`, the
    /// output included, are offloaded, but for the experts of the first `n_cpu_moe`;
    /// `graphs` show which kernels it takes.
    pub fn new(
        devices: Vec<Device>,
        n_layer: usize,
        n_offloaded: usize,
        n_cpu_moe: usize,
        overridden: HashMap<String, usize>,
        graphs: &[&Graph],
    ) -> Schedule {
        let n_offloaded = match devices.len() {
            0 | 1 => 0,
            _ => n_offloaded.min(n_layer + 1),
        };
        let mut schedule = Schedule {
            devices,
            n_layer,
            n_offloaded,
            n_cpu_moe,
            overridden,
            caches: HashMap::new(),
            refused: BTreeSet::new(),
        };
        let wanted = |id: CacheId| schedule.layer(id.layer());
        let runs = |device: usize, graph: &Graph, id| schedule.runs(device, graph, id);
        let mut refused = BTreeSet::new();
        let caches = sched::cache_devices(graphs, &wanted, &runs, &mut refused);
        (schedule.caches, schedule.refused) = (caches, refused);
        schedule
    }

    /// Ops of these graphs that run on the CPU only because the device has no kernel for
    /// them, or for one that shares a cache with them.
    pub fn refused<'a>(&self, graphs: impl IntoIterator<Item = &'a Graph>) -> BTreeSet<String> {
        let placed = graphs.into_iter().map(|graph| self.place(graph).refused);
        placed.fold(self.refused.clone(), |all, more| {
            all.union(&more).cloned().collect()
        })
    }

    /// Offloaded layers; the output is one of them.
    pub fn n_offloaded(&self) -> usize {
        self.n_offloaded
    }

    fn layer(&self, il: usize) -> usize {
        match il + self.n_offloaded > self.n_layer {
            true => OFFLOAD,
            false => HOST,
        }
    }

    /// Device number of a weight that `op` reads: the embedding is looked up on
    /// the CPU unless everything is offloaded, also where it is the output too.
    fn weight(&self, name: &str, op: &Op) -> usize {
        if let Some(&device) = self.overridden.get(name) {
            return device;
        }
        match layer_of(name) {
            Some(il) if il < self.n_cpu_moe && is_expert(name) => HOST,
            Some(il) => self.layer(il),
            None if matches!(op, Op::GetRows) => self.embedding(),
            None => self.layer(self.n_layer),
        }
    }

    /// Where embeddings are looked up: rows that need no copy of the whole
    /// matrix, so they come last.
    fn embedding(&self) -> usize {
        match self.n_offloaded > self.n_layer {
            true => OFFLOAD,
            false => HOST,
        }
    }

    /// Device number of a cache tensor.
    pub fn cache(&self, id: CacheId) -> usize {
        self.caches.get(&id).copied().unwrap_or(HOST)
    }

    fn runs(&self, device: usize, graph: &Graph, id: TensorId) -> bool {
        let device = self.devices.get(device);
        device.is_some_and(|device| device.runs(graph, id))
    }

    /// Who runs each node.
    pub fn place(&self, graph: &Graph) -> Placed {
        let rules = Rules {
            weight: &|name, op| self.weight(name, op),
            cache: &|id| self.cache(id),
            runs: &|device, graph, id| self.runs(device, graph, id),
        };
        sched::place(graph, &rules)
    }

    /// The graph cut into segments, not yet lowered.
    pub fn split(&self, graph: &Graph) -> Result<Split> {
        sched::split(graph, &self.place(graph).device_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(overrides: &[(&str, Device)]) -> Placement {
        let rule = |&(regex, device): &(&str, Device)| TensorOverride {
            regex: Regex::new(regex).expect("a regex"),
            device,
        };
        Placement {
            offload: Some(Device::Cuda(0)),
            layers: GpuLayers::Auto,
            overrides: overrides.iter().map(rule).collect(),
            n_cpu_moe: None,
        }
    }

    fn schedule(n_offloaded: usize, overridden: HashMap<String, usize>) -> Schedule {
        let devices = vec![Device::Cpu, Device::Cuda(0)];
        Schedule::new(devices, 4, n_offloaded, 0, overridden, &[])
    }

    #[test]
    fn the_output_goes_first_then_the_last_layers_then_the_embedding() {
        let weights = [
            ("token_embd.weight", Op::GetRows),
            ("blk.0.attn_q.weight", Op::MulMat),
            ("blk.1.ffn_up.weight", Op::MulMat),
            ("blk.2.ffn_up.weight", Op::MulMat),
            ("blk.3.ffn_down_exps.weight", Op::MulMatId),
            ("output.weight", Op::MulMat),
            ("token_embd.weight", Op::MulMat),
        ];
        for (n, on_gpu) in [
            (0, 0),
            (1, 2),
            (2, 3),
            (3, 4),
            (4, 5),
            (5, 7),
            (6, 7),
            (99, 7),
        ] {
            let schedule = schedule(n, HashMap::new());
            for (at, (name, op)) in weights.iter().enumerate() {
                let wanted = usize::from(at + on_gpu >= weights.len());
                assert_eq!(schedule.weight(name, op), wanted, "-ngl {n}: {name}");
            }
            for il in 0..4 {
                let wanted = usize::from(il + n > 4);
                assert_eq!(schedule.layer(il), wanted, "-ngl {n}: layer {il}");
            }
        }
    }

    #[test]
    fn experts_of_the_first_layers_stay_behind() {
        let devices = vec![Device::Cpu, Device::Cuda(0)];
        let named = HashMap::from([("blk.0.ffn_up_exps.weight".to_string(), OFFLOAD)]);
        let schedule = Schedule::new(devices, 4, 5, 2, named, &[]);
        for (name, wanted) in [
            ("blk.0.ffn_up_exps.weight", OFFLOAD),
            ("blk.0.ffn_gate_up_exps.weight", HOST),
            ("blk.1.ffn_down_exps.weight", HOST),
            ("blk.1.ffn_down_shexp.weight", OFFLOAD),
            ("blk.1.ffn_gate_inp.weight", OFFLOAD),
            ("blk.2.ffn_down_exps.weight", OFFLOAD),
        ] {
            assert_eq!(schedule.weight(name, &Op::MulMatId), wanted, "{name}");
        }
    }

    #[test]
    fn without_a_second_device_nothing_is_offloaded() {
        let alone = Schedule::new(vec![Device::Cpu], 4, 5, 0, HashMap::new(), &[]);
        assert_eq!(alone.n_offloaded(), 0);
        assert_eq!(alone.weight("output.weight", &Op::MulMat), HOST);
    }

    #[test]
    fn the_first_override_that_matches_counts() {
        let gpu = Device::Cuda(0);
        let placement = placement(&[
            (r"^blk\.1\..*exps", gpu),
            (r"exps", Device::Cpu),
            (r"token_embd", gpu),
        ]);
        let names = [
            "blk.1.ffn_up_exps.weight",
            "blk.2.ffn_up_exps.weight",
            "token_embd.weight",
            "output.weight",
        ];
        let found = placement.overridden(names.into_iter()).expect("devices");
        assert_eq!(found.len(), 3);
        assert_eq!(found[names[0]], OFFLOAD);
        assert_eq!(found[names[1]], HOST);
        let none = schedule(0, found.clone());
        assert_eq!(none.weight(names[0], &Op::MulMatId), OFFLOAD);
        assert_eq!(none.weight(names[2], &Op::GetRows), OFFLOAD);
        assert_eq!(none.weight(names[3], &Op::MulMat), HOST);
        let all = schedule(5, found);
        assert_eq!(all.weight(names[1], &Op::MulMatId), HOST);
    }

    #[test]
    fn an_override_names_a_device_in_use_and_ends_in_time() {
        let other = placement(&[("x", Device::Cuda(3))]);
        let text = other.overridden(["x"].into_iter()).expect_err("not in use");
        let text = text.to_string();
        assert!(
            text.contains("cuda3") && text.contains("cpu, cuda0"),
            "{text}"
        );
        let slow = placement(&[(r"^(\w+)*\1$", Device::Cpu)]);
        let name = "a".repeat(60) + ".";
        assert!(slow.overridden([name.as_str()].into_iter()).is_err());
    }
}
