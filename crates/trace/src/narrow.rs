//! Rounds f64 to f16, bf16 and 8-bit floats. The `half` crate drops the lower 32 bits before it rounds, and so takes some values just above the middle of a
//! step for ties.

use half::{bf16, f16};

/// The f16 nearest to `x`, ties to the even one.
///
/// ```
/// // A little more than half a step above 1.
/// assert_eq!(firstdiff_trace::to_f16(1.0 + 2f64.powi(-11) + 2f64.powi(-30)).to_f64(), 1.0 + 2f64.powi(-10));
/// ```
pub fn to_f16(x: f64) -> f16 {
    f16::from_f32(to_odd(x))
}

/// The bf16 nearest to `x`, ties to the even one.
pub fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(to_odd(x))
}

/// Floats of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum F8 {
    /// Four bits of exponent and no infinity: e4m3fn.
    E4m3,
    /// Five bits of exponent.
    E5m2,
}

impl F8 {
    /// The largest finite number.
    pub const fn max(self) -> f64 {
        if matches!(self, F8::E4m3) { 448.0 } else { 57344.0 }
    }

    /// The number nearest to `x`, ties to even. Above the range: NaN where the type has no infinity.
    pub fn nearest(self, x: f64) -> f64 {
        let (fraction, least, beyond) = if self == F8::E4m3 { (3, -6, f64::NAN) } else { (2, -14, f64::INFINITY) };
        // Below the smallest normal number the step is constant.
        let step = 2f64.powi((x.abs().log2().floor() as i32).clamp(least, 16) - fraction);
        let near = (x / step).round_ties_even() * step;
        if near.abs() > self.max() { beyond.copysign(x) } else { near }
    }

    /// The same, with values above the range clamped to the largest number.
    pub fn saturated(self, x: f64) -> f64 {
        self.nearest(x.clamp(-self.max(), self.max()))
    }
}

/// Rounds `x` to an f32 that later rounds to 16 bits as `x` would: towards zero, with the last bit set if anything was cut off. (Boldo and Melquiond,
/// "Emulation of a FMA and Correctly Rounded Sums", 2008.)
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let off = f64::from(near).abs() - x.abs();
    // Exact, infinite or NaN.
    if off == 0.0 || x.is_nan() || x.is_infinite() {
        return near;
    }
    let towards_zero = if off > 0.0 { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(towards_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearer of the two neighbours, computed in f64.
    fn nearest(x: f64, below: f64, above: f64, is_even_below: bool) -> f64 {
        match (x - below).total_cmp(&(above - x)) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => {
                if is_even_below {
                    below
                } else {
                    above
                }
            }
        }
    }

    #[test]
    fn around_every_middle_the_nearer_neighbour_is_taken() {
        for bits in 0..0x7bff_u16 {
            let (below, above) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let middle = (below + above) / 2.0;
            for x in [middle, middle * (1.0 - 1e-15), middle * (1.0 + 1e-15), middle * (1.0 + 1e-8), below, above] {
                let due = nearest(x, below, above, bits % 2 == 0);
                assert_eq!((to_f16(x).to_f64(), to_f16(-x).to_f64()), (due, -due), "{x:e}");
            }
        }
        for bits in (0..0x7f7f_u16).step_by(3) {
            let (below, above) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
            let middle = (below + above) / 2.0;
            for x in [middle, middle * (1.0 - 1e-15), middle * (1.0 + 1e-15), middle * (1.0 + 1e-8), below, above] {
                let due = nearest(x, below, above, bits % 2 == 0);
                assert_eq!((to_bf16(x).to_f64(), to_bf16(-x).to_f64()), (due, -due), "{x:e}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_so() {
        assert!(to_f16(f64::NAN).is_nan() && to_bf16(f64::NAN).is_nan());
        assert_eq!((to_f16(f64::INFINITY), to_bf16(f64::NEG_INFINITY)), (f16::INFINITY, bf16::NEG_INFINITY));
        assert_eq!((to_f16(1e300), to_bf16(-1e300)), (f16::INFINITY, bf16::NEG_INFINITY));
        assert!(to_f16(-0.0).is_sign_negative() && to_f16(1e-300).to_f64() == 0.0);
    }
}
