//! The kernels inside this binary: what `build.rs` compiled, and for which GPUs.

include!(concat!(env!("OUT_DIR"), "/cuda_images.rs"));

/// Bytes at an address the driver can read as a header.
#[allow(dead_code, reason = "unused in a build without kernels")]
#[repr(C, align(16))]
struct Aligned<const N: usize>([u8; N]);

/// The oldest compute capability the kernels are written for.
pub const MIN_CAPABILITY: (u32, u32) = (8, 0);

/// True when this binary has kernels at all.
pub fn present() -> bool {
    !IMAGES.is_empty()
}

/// True when one of [`ARCHS`] runs on a GPU of this compute capability.
pub fn serves(capability: (u32, u32)) -> bool {
    ARCHS.iter().any(|arch| runs_on(arch, capability))
}

/// What to compile for so that a GPU of this capability is served: `86`, `90a`.
pub fn arch_for((major, minor): (u32, u32)) -> String {
    // The instructions of Hopper alone need the `a`; build.rs does the same.
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("{major}{minor}{suffix}")
}

/// `80` runs on 8.x, `90a` on 9.0 alone, `compute_90` (which the driver compiles) on
/// 9.0 and everything after it.
fn runs_on(arch: &str, (major, minor): (u32, u32)) -> bool {
    let number = |text: &str| text.parse::<u32>().ok().map(|n| (n / 10, n % 10));
    if let Some(text) = arch.strip_prefix("compute_") {
        return number(text).is_some_and(|from| (major, minor) >= from);
    }
    match arch.strip_suffix('a') {
        Some(text) => number(text) == Some((major, minor)),
        None => number(arch).is_some_and(|(m, least)| m == major && least <= minor),
    }
}

#[cfg(test)]
mod tests {
    use super::{ARCHS, IMAGES, MIN_CAPABILITY, QUANT_TYPES, arch_for, runs_on};

    #[test]
    fn an_image_runs_on_its_family_from_its_own_capability_on() {
        assert!(runs_on("80", (8, 0)) && runs_on("80", (8, 9)));
        assert!(!runs_on("86", (8, 0)) && !runs_on("80", (9, 0)));
        assert!(runs_on("90a", (9, 0)) && !runs_on("90a", (9, 1)));
        assert!(runs_on("120", (12, 1)) && !runs_on("120", (10, 0)));
        assert!(runs_on("compute_90", (9, 0)) && runs_on("compute_90", (10, 3)));
        assert!(!runs_on("compute_90", (8, 9)));
        for capability in [(8, 6), (9, 0), (12, 0)] {
            assert!(runs_on(&arch_for(capability), capability));
        }
    }

    #[test]
    fn images_and_targets_go_together() {
        assert_eq!(IMAGES.is_empty(), ARCHS.is_empty());
        for (name, bytes) in IMAGES {
            assert!(name.ends_with(".cu"), "{name}");
            // The magic number of a fat binary.
            assert_eq!(bytes[..4], 0xba55_ed50_u32.to_le_bytes(), "{name}");
        }
        assert!(QUANT_TYPES.contains(&"Q4_K"), "{QUANT_TYPES:?}");
        assert!(!ARCHS.iter().any(|arch| runs_on(arch, (7, 5))));
        assert_eq!(MIN_CAPABILITY, (8, 0));
    }
}
