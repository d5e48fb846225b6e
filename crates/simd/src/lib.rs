//! Selects the vector instructions that kernels use: the best the processor has, or a lower level that the environment names.
//!
//! Every kernel gives the same bits at every level: a level changes the time, never the result. `FIRSTDIFF_SIMD=scalar` (or another [name](Level::name))
//! disables everything above a level, so that each can be tested and timed on one machine.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0 as L1, _MM_HINT_T1 as L2};
use std::sync::OnceLock;

/// The environment variable that limits the level.
pub const VARIABLE: &str = "FIRSTDIFF_SIMD";

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust: what every kernel must equal to the bit.
    Scalar,
    /// aarch64: 128 bits.
    Neon,
    /// x86-64: 256 bits, with FMA and F16C.
    Avx2,
    /// x86-64: 512 bits (F, BW, DQ and VL).
    Avx512,
    /// AVX-512 with dot products of integers (VNNI).
    Vnni,
}

/// The environment names a level that this processor lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}={requested}: this processor has {}", names(.available))]
pub struct LevelError {
    /// The level in the environment.
    pub requested: String,
    /// The levels of this processor.
    pub available: Vec<Level>,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 5] = [Level::Scalar, Level::Neon, Level::Avx2, Level::Avx512, Level::Vnni];

    /// The name in the environment: `scalar`, `neon`, `avx2`, `avx512`, `vnni`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Vnni => "vnni",
        }
    }

    /// Whether the processor has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => true,
            // Part of every aarch64 that Rust compiles for.
            Level::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => Level::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 | Level::Vnni => false,
        }
    }

    /// The levels of this processor, the lowest first.
    pub fn available() -> Vec<Level> {
        Level::ALL.into_iter().filter(|level| level.is_available()).collect()
    }

    /// The level that kernels use: the highest available, or the one that the environment names. An unavailable name is ignored here; see [`Level::from_env`].
    pub fn best() -> Level {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| match Level::from_env() {
            Ok(Some(level)) => level,
            _ => Level::available().into_iter().max().unwrap_or(Level::Scalar),
        })
    }

    /// The level that the environment names, if any.
    ///
    /// # Errors
    /// When that level is unknown, or the processor lacks it.
    pub fn from_env() -> Result<Option<Level>, LevelError> {
        let Some(requested) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Ok(None) };
        let requested = requested.to_string_lossy().into_owned();
        let available = Level::available();
        match available.iter().find(|level| level.name() == requested) {
            Some(level) => Ok(Some(*level)),
            None => Err(LevelError { requested, available }),
        }
    }
}

/// Prefetches the cache line at an address that is read soon; an invalid address does no harm. The hardware prefetches within a page only.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    prefetch_hint::<L1, T>(at);
}

/// The same for what is read later: into the second-level cache, so that nothing is evicted from the first.
#[inline(always)]
pub fn prefetch_for_later<T>(at: *const T) {
    prefetch_hint::<L2, T>(at);
}

#[cfg(not(target_arch = "x86_64"))]
const L1: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const L2: i32 = 1;

#[inline(always)]
fn prefetch_hint<const LEVEL: i32, T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing and faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<LEVEL>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

fn names(levels: &[Level]) -> String {
    levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_rust_is_always_there_and_the_best_is_available() {
        assert_eq!(Level::available().first(), Some(&Level::Scalar));
        assert!(Level::best().is_available());
    }

    #[test]
    fn the_error_names_what_there_is() {
        let error = LevelError { requested: "sse9".into(), available: vec![Level::Scalar, Level::Avx2] };
        assert_eq!(error.to_string(), "FIRSTDIFF_SIMD=sse9: this processor has scalar, avx2");
    }
}
