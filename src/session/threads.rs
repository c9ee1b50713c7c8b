//! How many threads the CPU side runs.

use super::Session;

impl Session {
    /// Physical cores this process may use.
    pub fn default_threads() -> usize {
        let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
        allowed.min(physical_cores().unwrap_or(allowed)).max(1)
    }
}

/// Cores as the kernel lists them: processors that share a core count once.
fn physical_cores() -> Option<usize> {
    let mut cores = std::collections::HashSet::new();
    for cpu in std::fs::read_dir("/sys/devices/system/cpu").ok()? {
        let path = cpu.ok()?.path().join("topology/thread_siblings_list");
        if let Ok(siblings) = std::fs::read_to_string(path) {
            cores.insert(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}
