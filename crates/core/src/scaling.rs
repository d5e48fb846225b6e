//! Computes RoPE frequencies, and their scalings for long contexts.

use crate::kernel::float::Float;

/// How RoPE frequencies are changed to extend the context a model was trained for.
///
/// Source: transformers, modeling_rope_utils; the papers are named at each.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Unchanged.
    None,
    /// Every frequency divided by `factor` (Chen et al., Extending Context Window via Positional Interpolation, 2023).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Every frequency divided by a divisor of its own: `rope_freqs.weight` of a GGUF.
    Divided {
        /// One for each pair.
        divisors: Vec<f64>,
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
        /// Rotations within the original context above which a pair is kept.
        beta_fast: f64,
        /// Rotations below which a pair is divided.
        beta_slow: f64,
        /// The context of the first training.
        original_max_position: f64,
        /// The factor on cos and sin, where the config gives it.
        attention_factor: Option<f64>,
        /// m in the numerator of the factor, where given.
        mscale: Option<f64>,
        /// m in the denominator of the factor, where given.
        mscale_all_dim: Option<f64>,
        /// Whether the ramp's ends are rounded to whole pairs.
        truncate: bool,
    },
}

/// The angle per position of each of the `rotary_dim`/2 pairs, in radians, and the factor on cos and sin.
///
/// Unscaled: ωᵢ = 1 / theta^(2i/rotary_dim). Computed in F, in the order of transformers: in f32 these are PyTorch's own
/// frequencies, nearly always to the bit. A power is rounded from f64.
///
/// ```
/// use firstdiff_core::{RopeScaling, rope_inv_freq};
/// let (angles, factor) = rope_inv_freq(4, 10_000.0, &RopeScaling::None);
/// assert_eq!((angles.as_slice(), factor), (&[1.0, 0.01][..], 1.0));
/// ```
pub fn rope_inv_freq<F: Float>(rotary_dim: usize, theta: f64, scaling: &RopeScaling) -> (Vec<F>, f64) {
    let dim = rotary_dim as f64;
    let power = |i: usize| F::from_f64(theta.powf((F::from_f64((2 * i) as f64) / F::from_f64(dim)).as_f64()));
    let powers = (0..rotary_dim / 2).map(power);
    let plain = powers.clone().map(F::recip);
    match *scaling {
        RopeScaling::Divided { ref divisors } => {
            let divided = plain.zip(divisors).map(|(w, &by)| w / F::from_f64(by));
            (divided.collect(), 1.0)
        }
        RopeScaling::None => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => (plain.map(|w| w / F::from_f64(factor)).collect(), 1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let band =
                Llama3Band { factor, low: low_freq_factor, high: high_freq_factor, context: original_max_position };
            (plain.map(|w| band.scaled(w)).collect(), 1.0)
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
            let (first, last) = (pair_of(beta_fast), pair_of(beta_slow));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let ramp = Ramp { first: first.max(0.0), last: last.min(dim - 1.0) };
            let blend = |(i, power): (usize, F)| {
                let kept = F::one() - ramp.weight_at(i);
                (F::from_f64(factor) * power).recip() * (F::one() - kept) + power.recip() * kept
            };
            let size = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
            let derived = match (mscale, mscale_all_dim) {
                (Some(m), Some(all)) if m != 0.0 && all != 0.0 => size(m) / size(all),
                _ => size(1.0),
            };
            (powers.enumerate().map(blend).collect(), attention_factor.unwrap_or(derived))
        }
    }
}

/// Llama 3's bands: short, medium and long wavelengths.
struct Llama3Band {
    factor: f64,
    low: f64,
    high: f64,
    context: f64,
}

impl Llama3Band {
    /// Keeps w where its wavelength is short, divides it where it is long, blends in between.
    fn scaled<F: Float>(&self, w: F) -> F {
        let [factor, low, span, context] = [self.factor, self.low, self.high - self.low, self.context].map(F::from_f64);
        let wavelength = w.recip() * F::from_f64(std::f64::consts::TAU);
        if wavelength < F::from_f64(self.context / self.high) {
            return w;
        }
        if wavelength > F::from_f64(self.context / self.low) {
            return w / factor;
        }
        let smooth = (wavelength.recip() * context - low) / span;
        (F::one() - smooth) * w / factor + smooth * w
    }
}

/// YaRN's ramp over the pairs, from kept to divided.
struct Ramp {
    first: f64,
    last: f64,
}

impl Ramp {
    /// The weight of the divided frequency for pair i, 0 to 1.
    fn weight_at<F: Float>(&self, i: usize) -> F {
        // As transformers: not zero, which would divide by zero.
        let length = if self.first == self.last { 0.001 } else { self.last - self.first };
        ((F::from_f64(i as f64) - F::from_f64(self.first)) / F::from_f64(length)).max(F::zero()).min(F::one())
    }
}
