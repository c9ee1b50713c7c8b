//! Sessions with layers on the GPU, and what happens to their trials without one.

use libtest_mimic::{Failed, Trial};
use llama_rs::backend::Device;
use llama_rs::backend::cuda::Context;
use llama_rs::gguf::Gguf;
use llama_rs::memory::{GpuLayers, Placement};
use llama_rs::model::{Model, Overrides};
use llama_rs::session::{Session, SessionParams};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the layers of a model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    Cpu,
    /// All on the GPU.
    CudaAll,
    /// The output alone, as `-ngl 1` has it.
    CudaOne,
    /// The output and the upper half.
    CudaMid,
}

impl Layers {
    /// With their names in trials.
    pub const ALL: [(Layers, &str); 4] = [
        (Layers::Cpu, ""),
        (Layers::CudaAll, "cuda_all::"),
        (Layers::CudaOne, "cuda_1::"),
        (Layers::CudaMid, "cuda_mid::"),
    ];

    fn placement(self, n_layer: usize) -> Placement {
        let layers = match self {
            Layers::Cpu => return Placement::cpu(),
            Layers::CudaAll => GpuLayers::All,
            Layers::CudaOne => GpuLayers::Count(1),
            Layers::CudaMid => GpuLayers::Count(1 + n_layer / 2),
        };
        Placement {
            offload: Some(Device::Cuda(0)),
            layers,
            ..Placement::cpu()
        }
    }

    /// A session over a file; `params` says all but where it runs.
    ///
    /// # Errors
    /// The device refuses.
    pub fn session(self, file: &Path, params: SessionParams) -> llama_rs::Result<Session> {
        let model = Model::load(Gguf::open(file, true)?, &Overrides::default())?;
        let placement = self.placement(model.n_layer());
        let params = SessionParams {
            placement,
            ..params
        };
        Session::new(Arc::new(model), params)
    }
}

/// Makes trials that need a GPU: one at a time, ignored when there is none.
pub struct Trials {
    missing: Option<String>,
    required: bool,
}

impl Trials {
    /// Looks for the GPU; says once on stderr when trials are skipped.
    pub fn new() -> Trials {
        let missing = Context::open(0).err().map(|e| e.to_string());
        let required = std::env::var("LLAMA_RS_REQUIRE_CUDA").is_ok_and(|v| v == "1");
        if let (Some(reason), false) = (&missing, required) {
            eprintln!("CUDA trials skipped: {reason}");
        }
        Trials { missing, required }
    }

    /// A trial of `check` with its layers there.
    pub fn trial(
        &self,
        name: String,
        layers: Layers,
        check: impl FnOnce() -> Result<(), Failed> + Send + 'static,
    ) -> Trial {
        if layers == Layers::Cpu {
            return Trial::test(name, check);
        }
        static GPU: Mutex<()> = Mutex::new(());
        let missing = self.missing.clone();
        let ignored = missing.is_some() && !self.required;
        let trial = Trial::test(name, move || match missing {
            Some(reason) => Err(Failed::from(reason)),
            None => {
                let _one = GPU.lock().unwrap_or_else(PoisonError::into_inner);
                check()
            }
        });
        trial.with_ignored_flag(ignored)
    }
}
