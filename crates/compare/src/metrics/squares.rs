//! Sums an NMSE over values that are not in two slices, in the order given.

/// Σ(c-r)² and Σr².
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Squares {
    /// Σ(c-r)².
    pub error: f64,
    /// Σr².
    pub energy: f64,
}

impl Squares {
    /// The sums over all pairs of a reference and a candidate.
    pub fn sum(pairs: impl IntoIterator<Item = (f64, f64)>) -> Squares {
        let mut squares = Squares::default();
        pairs.into_iter().for_each(|(reference, candidate)| squares.add(reference, candidate));
        squares
    }

    /// Adds a pair.
    pub fn add(&mut self, reference: f64, candidate: f64) {
        let d = candidate - reference;
        self.error += d * d;
        self.energy += reference * reference;
    }

    /// Σ(c-r)² / Σr²; where the reference is all zeros, Σ(c-r)² itself.
    pub fn nmse(self) -> f64 {
        self.nmse_or(self.error)
    }

    /// Σ(c-r)² / Σr²; `silent` where the reference is all zeros.
    pub fn nmse_or(self, silent: f64) -> f64 {
        if self.energy > 0.0 { self.ratio() } else { silent }
    }

    /// Σ(c-r)² / Σr², and 0 where nothing differs: infinite where only the reference is all zeros, or a value is not finite.
    pub fn relative(self) -> f64 {
        let ratio = if self.error == 0.0 { 0.0 } else { self.ratio() };
        if ratio.is_nan() { f64::INFINITY } else { ratio }
    }

    /// Σ(c-r)² / Σr², a NaN where both are all zeros.
    pub fn ratio(self) -> f64 {
        self.error / self.energy
    }
}

impl std::ops::Add for Squares {
    type Output = Squares;

    fn add(self, other: Squares) -> Squares {
        Squares { error: self.error + other.error, energy: self.energy + other.energy }
    }
}

#[cfg(test)]
mod tests {
    use super::Squares;

    #[test]
    fn a_reference_of_zeros_is_no_divisor() {
        assert_eq!(Squares::sum([(2.0, 3.0), (0.0, 0.0)]).nmse(), 0.25);
        let silent = Squares::sum([(0.0, 3.0)]);
        assert_eq!((silent.nmse(), silent.nmse_or(0.0), silent.relative()), (9.0, 0.0, f64::INFINITY));
        assert_eq!(Squares::sum([(0.0, 0.0)]).relative(), 0.0);
        assert!(Squares::default().ratio().is_nan());
    }
}
