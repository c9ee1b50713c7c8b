//! Which instruction set the CPU kernels use, chosen once at run time.

use crate::error::{Error, Result};

/// Environment variable that forces a path.
const FORCE_VAR: &str = "LLAMA_RS_SIMD";

/// An instruction set the kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Simd {
    /// Plain Rust: every platform, and the reference.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Simd {
    /// Every path, slowest first.
    pub const ALL: [Simd; 3] = [Simd::Scalar, Simd::Avx2, Simd::Avx512];

    /// Name as `LLAMA_RS_SIMD` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
        }
    }

    /// True when this machine can run the path.
    pub fn available(self) -> bool {
        match self {
            Simd::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => {
                Simd::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 => false,
        }
    }

    /// The fastest path of this machine, or the one `LLAMA_RS_SIMD` names.
    ///
    /// # Errors
    /// The variable names a path that does not exist or cannot run here.
    pub fn detect() -> Result<Simd> {
        match std::env::var_os(FORCE_VAR) {
            Some(name) => Simd::named(&name.to_string_lossy()),
            None => Ok(Simd::best()),
        }
    }

    /// The fastest path of this machine.
    pub fn best() -> Simd {
        let fastest = Simd::ALL.into_iter().rev().find(|s| s.available());
        fastest.unwrap_or(Simd::Scalar)
    }

    /// The path a user names.
    fn named(name: &str) -> Result<Simd> {
        let found = Simd::ALL.into_iter().find(|s| s.name() == name);
        match found {
            Some(simd) if simd.available() => Ok(simd),
            _ => {
                let names = Simd::ALL.into_iter().filter(|s| s.available());
                let names: Vec<_> = names.map(Simd::name).collect();
                Err(Error::input(format!(
                    "{FORCE_VAR}={name}: not available on this machine; use one of {} or unset it",
                    names.join(", ")
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_available_paths_are_taken() {
        for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
            assert_eq!(Simd::named(simd.name()).ok(), Some(simd));
        }
    }

    #[test]
    fn unknown_name_lists_what_is_available() {
        let text = Simd::named("sse9").map_err(|e| e.to_string());
        let text = text.expect_err("no such path");
        assert!(
            text.contains("sse9") && text.contains("scalar"),
            "names the value and the choices: {text}"
        );
        assert!(Simd::named("").is_err() && Simd::named("AVX2").is_err());
    }
}
