//! Holds the only table of tolerances for rounding, by arithmetic and depth.

pub(crate) mod context;
pub(crate) mod experts;
pub(crate) mod inspect;
pub(crate) mod judge;
pub(crate) mod layout;
pub(crate) mod run;

use std::fmt;
use std::str::FromStr;

use firstdiff_trace::{Cache, DType, Site, Tap};

/// The arithmetic in which a right implementation works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// f64 throughout.
    Exact,
    /// f32 throughout.
    F32,
    /// f16 weights, activations or cache, sums in f32.
    F16,
    /// bf16 weights and activations, sums in f32.
    Bf16,
    /// llama.cpp's quantised products: activations to 8 bits in blocks.
    Ggml,
}

impl Profile {
    /// Every profile, finest first.
    pub const ALL: [Profile; 5] = [Profile::Exact, Profile::F32, Profile::F16, Profile::Bf16, Profile::Ggml];

    /// The name on the command line and in dump.json.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Exact => "exact",
            Profile::F32 => "f32",
            Profile::F16 => "f16",
            Profile::Bf16 => "bf16",
            Profile::Ggml => "ggml",
        }
    }

    /// NMSE of one operation's rounding, with room for an unfavourable order of summation.
    ///
    /// mistakes.md of the design measured, for dot products of 4096: f32 summed in sequence 1.3e-12, f16 in and out 1.3e-7,
    /// bf16 in and out 8.0e-6, Q8_0 activations 2.6e-5 to 1.4e-4, Q8_K up to 1.1e-3 with outliers. Inside a model each operation also passes on
    /// its inputs' errors: PyTorch in bf16 and f16 on the fixtures is 2.4e-4 and 5.2e-6 off at worst after two layers.
    fn base(self) -> f64 {
        match self {
            Profile::Exact => 1e-24,
            Profile::F32 => 1e-11,
            Profile::F16 => 4e-6,
            Profile::Bf16 => 2e-4,
            Profile::Ggml => 1e-3,
        }
    }

    /// A constant factor nearer to 1 than this is no finding: it may be rounding of a norm's scale, a softmax's sum, or a RoPE factor.
    pub(crate) fn factor_floor(self) -> f64 {
        match self {
            Profile::Exact => 1e-12,
            Profile::F32 => 2e-6,
            Profile::F16 => 1e-3,
            Profile::Bf16 => 5e-3,
            Profile::Ggml => 8e-3,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Profile, String> {
        Profile::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("'{name}' is not a profile: exact, f32, f16, bf16, ggml"))
    }
}

/// NMSE that storing values in a type adds: relative steps of 2^-11 (f16) and 2^-8 (bf16), rounded to nearest.
pub fn storage_nmse(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 0.0,
        DType::F32 => 4e-15,
        DType::F16 => 1e-7,
        DType::BF16 => 6e-6,
    }
}

/// NMSE that storing keys and values in a type adds at most: for Q8_0 where one element of each block has all of its energy.
pub fn cache_nmse(cache: Cache) -> f64 {
    match cache {
        Cache::F32 => 0.0,
        Cache::F16 => 1e-7,
        Cache::Bf16 => 6e-6,
        Cache::Q8_0 => 1.7e-4,
        // Relative steps of 2^-3, and constant ones of what is small.
        Cache::E4m3 => 1.6e-3,
    }
}

/// The size of a run, as far as rounding grows with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of layers.
    pub layers: u32,
    /// Number of token positions, decode steps included.
    pub positions: usize,
}

/// The NMSE that `profile` allows a tap at its depth: errors of the layers before it add up.
pub fn allowed_nmse(profile: Profile, tap: Tap, extent: Extent, stored: [DType; 2]) -> f64 {
    let depth = match (tap.layer, tap.site) {
        (Some(layer), _) => f64::from(layer) + 1.0,
        (None, Site::H0) => 0.0,
        (None, _) => f64::from(extent.layers) + 1.0,
    };
    // A table look-up rounds at most once; in the coarse profiles that is all the error there is.
    let share = match tap.site {
        Site::H0 if profile <= Profile::F32 => 0.1,
        // e^x turns an error in x, which is relative to x, into one relative to 1: PyTorch in bf16 is up to 1.5e-3 off after 400 tokens.
        Site::Probs | Site::RouterProbs => 10.0,
        // Taps that read the probabilities inherit some of it.
        Site::Context | Site::AttnOut => 4.0,
        _ => 1.0,
    };
    let rope = if is_rotated(tap) && profile != Profile::Exact { angle_error(extent.positions) } else { 0.0 };
    (profile.base() * share + rope) * (1.0 + depth) + storage_nmse(stored[0]) + storage_nmse(stored[1])
}

/// Whether a tap has been through RoPE.
fn is_rotated(tap: Tap) -> bool {
    match tap.layer {
        Some(0) => tap.site >= Site::QRope,
        Some(_) => true,
        None => tap.site != Site::H0,
    }
}

/// NMSE that angles in f32 add at the last position: PyTorch rounds frequency and angle to f32, llama.cpp multiplies from pair to pair, others compute in
/// f64. A frequency is off by about 6e-8 of itself, and the angle by that times the position.
fn angle_error(positions: usize) -> f64 {
    1e-15 * (positions as f64).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_grows_with_depth_and_coarseness() {
        let tap = |name: &str| name.parse().unwrap();
        let (f32s, extent) = ([DType::F32; 2], Extent { layers: 4, positions: 11 });
        for pair in Profile::ALL.windows(2) {
            assert!(
                allowed_nmse(pair[0], tap("logits"), extent, f32s) < allowed_nmse(pair[1], tap("logits"), extent, f32s)
            );
        }
        let at = |name: &str| allowed_nmse(Profile::F32, tap(name), extent, f32s);
        assert!(at("h0") < at("layers.0.q") && at("layers.0.q") < at("layers.3.h") && at("layers.3.h") < at("logits"));
    }

    #[test]
    fn names_round_trip() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert!("fp32".parse::<Profile>().is_err());
    }
}
