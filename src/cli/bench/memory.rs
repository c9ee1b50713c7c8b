//! Bytes that decoding moves, and what the memory gives.

use super::plan::{Kind, Test};
use crate::Result;
use crate::backend::Device;
use crate::backend::check::peak;
use crate::backend::cuda::{Context, bandwidth};
use crate::memory::placement::is_expert;
use crate::memory::{GpuLayers, Placement};
use crate::model::Model;
use crate::session::Session;

/// Bytes per second of a device's memory, measured before the tests.
#[derive(Debug, Clone, Copy)]
pub struct Bandwidth {
    pub device: Device,
    /// Of the CPU: as many threads read.
    n_threads: usize,
    pub bytes_per_second: f64,
}

/// What has been measured so far.
#[derive(Default)]
pub struct Bandwidths(Vec<Bandwidth>);

impl Bandwidths {
    /// Measures the devices that may be used so, each once, while nothing lies there.
    pub fn measure(&mut self, placement: &Placement, n_threads: usize) -> Result<()> {
        if let Some(Device::Cuda(index)) = placement.offload
            && placement.layers != GpuLayers::Count(0)
        {
            let device = Device::Cuda(index);
            if self.of(device, n_threads).is_none() {
                match Context::open(index).and_then(|context| bandwidth::copy_bandwidth(&context)) {
                    Ok(measured) => self.add(device, n_threads, measured),
                    Err(error) => tracing::warn!("the bandwidth of {device} is unknown: {error}"),
                }
            }
        } else if self.of(Device::Cpu, n_threads).is_none() {
            let measured = peak::cpu_read_bandwidth(n_threads)?;
            self.add(Device::Cpu, n_threads, measured);
        }
        Ok(())
    }

    fn add(&mut self, device: Device, n_threads: usize, bytes_per_second: f64) {
        let how = match device {
            Device::Cpu => format!("{n_threads} threads read"),
            Device::Cuda(_) => "a copy reads and writes".to_string(),
        };
        tracing::info!(
            "memory of {device}: {how} {:.1} GB/s",
            bytes_per_second / 1e9
        );
        self.0.push(Bandwidth {
            device,
            n_threads,
            bytes_per_second,
        });
    }

    fn of(&self, device: Device, n_threads: usize) -> Option<Bandwidth> {
        let same = |b: &&Bandwidth| {
            b.device == device && (device != Device::Cpu || b.n_threads == n_threads)
        };
        self.0.iter().find(same).copied()
    }

    /// Of the memory that a session decodes from; `None` when its layers are on two
    /// devices, or nothing is known.
    pub fn of_session(&self, session: &Session, n_threads: usize) -> Option<Bandwidth> {
        match session.load() {
            Some(load) if load.n_layers == load.most_layers => self.of(load.device, n_threads),
            Some(load) if load.n_layers > 0 => None,
            _ => self.of(Device::Cpu, n_threads),
        }
    }
}

/// Bytes that a step of a decode test moves, in the middle of the test; `None` of others.
pub fn bytes_per_step(model: &Model, session: &Session, test: Test) -> Option<f64> {
    let Kind::Decode(n) = test.kind else {
        return None;
    };
    let n_past = test.start() + n / 2;
    let cached = test.n_seqs * session.bytes_moved(n_past);
    Some(weight_bytes(model, test.n_seqs) + cached as f64)
}

/// Bytes of weights that a step of `n_tokens` reads: of the embedding their rows, unless
/// it is the output too, and of experts as many as tokens that choose at random hit.
fn weight_bytes(model: &Model, n_tokens: usize) -> f64 {
    let hp = model.hparams();
    let has_output = model.weight_data("output.weight").is_some();
    let of = |name: &str| {
        let bytes = model.weight_data(name).map_or(0, <[u8]>::len) as f64;
        match name {
            "token_embd.weight" if has_output => {
                bytes * (n_tokens as f64 / hp.n_vocab.max(1) as f64).min(1.0)
            }
            _ if is_expert(name) => bytes * share_hit(hp.n_expert, hp.n_expert_used, n_tokens),
            _ => bytes,
        }
    };
    model.weight_names().map(of).sum()
}

/// The share of experts that at least one of `n_tokens` chooses at random.
fn share_hit(n_expert: usize, n_used: usize, n_tokens: usize) -> f64 {
    let missed = 1.0 - n_used as f64 / n_expert.max(1) as f64;
    1.0 - missed.powi(n_tokens as i32)
}

#[cfg(test)]
mod tests {
    use super::share_hit;

    #[test]
    fn more_tokens_hit_more_experts() {
        assert_eq!(share_hit(128, 8, 1), 0.0625);
        assert_eq!(share_hit(4, 2, 2), 0.75);
        assert_eq!(share_hit(8, 8, 1), 1.0);
        assert!(share_hit(128, 8, 1000) <= 1.0);
    }
}
