//! Computes functions that the standard library lacks: sigmoid, softplus, erfinv.

/// 1 / (1 + e^-x).
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + e^x), without overflow.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The inverse of the error function; infinite at ±1, NaN beyond.
///
/// Initial value: Giles, Approximating the erfinv function, 2010. Then Newton steps, y - (erf(y) - x) · √π/2 · e^(y²), computed with the complementary
/// error function, which stays accurate near 1.
pub(super) fn erfinv(x: f64) -> f64 {
    if x.abs() >= 1.0 || x.is_nan() {
        return if x.abs() == 1.0 { x * f64::INFINITY } else { f64::NAN };
    }
    let rest = 1.0 - x.abs();
    let w = -(rest * (1.0 + x.abs())).ln();
    let central = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        0.000_218_580_87,
        -0.001_253_725_03,
        -0.004_177_681_64,
        0.246_640_727,
        1.501_409_41,
    ];
    let tail = [
        -0.000_200_214_257,
        0.000_100_950_558,
        0.001_349_343_22,
        -0.003_673_428_44,
        0.005_739_507_73,
        -0.007_622_461_3,
        0.009_438_870_47,
        1.001_674_06,
        2.832_976_82,
    ];
    let (coefficients, at) = if w < 5.0 { (central, w - 2.5) } else { (tail, w.sqrt() - 3.0) };
    let mut y = coefficients.iter().fold(0.0, |sum, c| sum * at + c) * x.abs();
    for _ in 0..3 {
        let off = if x.abs() < 0.5 { libm::erf(y) - x.abs() } else { rest - libm::erfc(y) };
        y -= off * (y * y).exp() / std::f64::consts::FRAC_2_SQRT_PI;
    }
    y.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erfinv_undoes_erf() {
        for x in [0.0, 1e-12, -0.3, 0.5, 0.9, -0.999, 0.999_999_999] {
            let off = (libm::erf(erfinv(x)) - x).abs();
            assert!(off <= 1e-15 * x.abs().max(1e-3), "{x}: {off:e}");
        }
        assert_eq!((erfinv(1.0), erfinv(-1.0)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(erfinv(1.5).is_nan());
    }
}
