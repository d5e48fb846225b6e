//! By which angle does each pair of a head turn per position? RoPE frequencies and their scalings for long contexts.

/// How the frequencies are changed so that a model reads beyond the context it was first trained for.
///
/// Source: transformers, modeling_rope_utils; the papers are named at each.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor` (Chen et al., Extending Context Window via Positional Interpolation, 2023).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The factor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position` / this are low.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position` / this are high.
        high_freq_factor: f64,
        /// The context of the first training.
        original_max_position: f64,
    },
    /// A ramp over the pairs from kept to divided, and a factor on q and k (Peng et al., YaRN, 2023).
    Yarn {
        /// The factor of low frequencies.
        factor: f64,
        /// Turns within the original context above which a pair is kept.
        beta_fast: f64,
        /// Turns below which a pair is divided.
        beta_slow: f64,
        /// The context of the first training.
        original_max_position: f64,
        /// The factor on cos and sin, where the config gives it.
        attention_factor: Option<f64>,
        /// Numerator's m of the factor, where given.
        mscale: Option<f64>,
        /// Denominator's m of the factor, where given.
        mscale_all_dim: Option<f64>,
        /// Whether the ramp's ends are rounded to whole pairs.
        truncate: bool,
    },
}

/// The angle per position of each of the `rotary_dim`/2 pairs, in radians, and the factor on cos and sin.
///
/// Unscaled: ωᵢ = theta^(-2i/rotary_dim). All in f64.
///
/// ```
/// use firstdiff_core::{RopeScaling, rope_inv_freq};
/// let (angles, factor) = rope_inv_freq(4, 10_000.0, &RopeScaling::None);
/// assert_eq!((angles.as_slice(), factor), (&[1.0, 0.01][..], 1.0));
/// ```
pub fn rope_inv_freq(rotary_dim: usize, theta: f64, scaling: &RopeScaling) -> (Vec<f64>, f64) {
    let dim = rotary_dim as f64;
    let plain = (0..rotary_dim / 2).map(|i| theta.powf(-(2.0 * i as f64) / dim));
    match *scaling {
        RopeScaling::None => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => (plain.map(|w| w / factor).collect(), 1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let scaled = |w: f64| {
                let wavelength = std::f64::consts::TAU / w;
                if wavelength < original_max_position / high_freq_factor {
                    return w;
                }
                if wavelength > original_max_position / low_freq_factor {
                    return w / factor;
                }
                let smooth =
                    (original_max_position / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * w / factor + smooth * w
            };
            (plain.map(scaled).collect(), 1.0)
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } => {
            let pair_of =
                |turns: f64| dim * (original_max_position / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
            let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
            let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(dim - 1.0));
            // The ramp must not be vertical.
            let high = if low == high { high + 0.001 } else { high };
            let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let scaled = plain.enumerate().map(|(i, w)| w / factor * ramp(i) + w * (1.0 - ramp(i))).collect();
            let size = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
            let derived = match (mscale, mscale_all_dim) {
                (Some(m), Some(all)) if m != 0.0 && all != 0.0 => size(m) / size(all),
                _ => size(1.0),
            };
            (scaled, attention_factor.unwrap_or(derived))
        }
    }
}
