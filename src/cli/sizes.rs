//! Sizes of memory as people write them.

use crate::backend::Device;

use super::device_flags::parse_device;

/// Units and their bytes; those of GB and the like are powers of ten.
const UNITS: [(&str, f64); 13] = [
    ("b", 1.0),
    ("k", 1024.0),
    ("kib", 1024.0),
    ("kb", 1e3),
    ("m", 1_048_576.0),
    ("mib", 1_048_576.0),
    ("mb", 1e6),
    ("g", 1_073_741_824.0),
    ("gib", 1_073_741_824.0),
    ("gb", 1e9),
    ("t", 1_099_511_627_776.0),
    ("tib", 1_099_511_627_776.0),
    ("tb", 1e12),
];

/// Reads `8GiB`, `7.5G`, `512MiB`; a number alone counts `unit`, where there is one.
fn parse_size(text: &str, unit: Option<&str>) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, given) = text.split_at(digits.unwrap_or(text.len()));
    let bad = || format!("{text:?} is no size, such as 8GiB or 512MiB");
    let number: f64 = number.parse().map_err(|_| bad())?;
    let given = given.trim().to_ascii_lowercase();
    let name = match given.as_str() {
        "" => unit.ok_or_else(bad)?,
        given => given,
    };
    let (_, bytes) = UNITS.iter().find(|u| u.0 == name).ok_or_else(bad)?;
    let bytes = number * bytes;
    // Beyond 2^53 a float is no longer exact, and no machine has so much.
    match bytes < (1_u64 << 53) as f64 {
        true => Ok(bytes as usize),
        false => Err(format!("{text:?} is more than any machine has")),
    }
}

/// Reads a size; a number alone counts MiB.
pub fn parse_margin(text: &str) -> Result<usize, String> {
    parse_size(text, Some("mib"))
}

/// Free memory of a device that may not be here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    pub device: Device,
    pub bytes: usize,
}

/// Reads `cuda0=8GiB`.
pub fn parse_device_memory(text: &str) -> Result<DeviceMemory, String> {
    let (name, size) = text.split_once('=').ok_or("no `=SIZE` after the device")?;
    Ok(DeviceMemory {
        device: parse_device(name)?,
        bytes: parse_size(size, None)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_a_default() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512 << 20),
            ("512MiB", 512 << 20),
            ("7.5G", 15 << 29),
            ("8gib", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1024b", 1024),
        ] {
            assert_eq!(parse_margin(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "8X", "-1", "1e3", "8GiBs", "1.2.3G", "9999999T"] {
            assert!(parse_margin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn device_memory_names_device_and_unit() {
        let memory = DeviceMemory {
            device: Device::Cuda(0),
            bytes: 8 << 30,
        };
        assert_eq!(parse_device_memory("cuda0=8GiB"), Ok(memory));
        let host = parse_device_memory("cpu=16G").expect("reads");
        assert_eq!((host.device, host.bytes), (Device::Cpu, 16 << 30));
        for bad in ["cuda0", "8GiB", "cuda0=8", "cuda0=", "vulkan0=8GiB"] {
            assert!(parse_device_memory(bad).is_err(), "{bad}");
        }
    }
}
