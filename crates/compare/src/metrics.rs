//! Measures how far apart two equally long sequences of floats are.
//!
//! One pass, everything in f64, in sums that merge. Let r be the reference, c the candidate and d = c - r:
//!
//! | | |
//! |---|---|
//! | NMSE | Σd² / Σr² |
//! | RMSE | √(Σd² / n) |
//! | correlation | Σ(r-r̄)(c-c̄) / √(Σ(r-r̄)² Σ(c-c̄)²) (Pearson) |
//! | cosine | Σrc / √(Σr² Σc²) |
//!
//! Means and centred sums are stored (merged as in Chan, Golub and LeVeque, 1983); plain sums follow without cancellation, as Σr² = Σ(r-r̄)² + n r̄². The
//! order of every addition depends only on the lengths: neither the processor nor the number of threads changes a bit of the result.
//!
//! # Limits
//! - A NaN, or an infinity the other side does not have, is counted in [`NonFinite`], and from then on no measure is given
//!   (`None`): no threshold can pass it. [`Metrics::finite_part`] measures the pairs that remain. An infinity of the same
//!   sign on both sides, as in masked scores, agrees and enters no sum.
//! - Every f32, f16 and bf16 is in range. In f64, where squares overflow (values beyond 1e150) or a divisor is below 1e-150, a measure is
//!   `None`, never a zero. [`Metrics::is_equal`], [`Metrics::is_identical`] and the maximum are right in any case.

mod kernel;
mod moments;
mod squares;
mod stream;
mod values;

use moments::Moments;

use crate::tolerance::judge::LEAST_ENERGY;

pub use squares::Squares;
pub use values::Values;

/// The distance between a reference and a candidate, as sums that merge.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Metrics {
    len: usize,
    moments: Moments,
    peak: Option<Peak>,
    non_finite: NonFinite,
    unequal: bool,
    not_identical: bool,
}

/// The largest |candidate - reference|, and where it first occurs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Peak {
    /// Flat index.
    pub index: usize,
    /// The reference there.
    pub reference: f64,
    /// The candidate there.
    pub candidate: f64,
    /// |candidate - reference|.
    pub abs_diff: f64,
}

/// How often something occurred, and the flat index where it first occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Occurrences {
    /// Number of pairs.
    pub count: usize,
    /// Index of the first.
    pub first: Option<usize>,
}

/// The pairs that are in no sum because a side is not finite. A pair that is NaN on both sides is in both NaN tallies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct NonFinite {
    /// The reference is NaN.
    pub nan_reference: Occurrences,
    /// The candidate is NaN.
    pub nan_candidate: Occurrences,
    /// The reference is infinite, the candidate finite.
    pub inf_reference: Occurrences,
    /// The candidate is infinite, the reference finite.
    pub inf_candidate: Occurrences,
    /// Both are infinite, of opposite sign.
    pub inf_sign: Occurrences,
    /// Both are the same infinity: these agree.
    pub inf_equal: Occurrences,
}

/// The factor that best explains a candidate, see [`Metrics::best_factor`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor {
    /// f minimising Σ(c - f r)².
    pub factor: f64,
    /// The NMSE that c / f would have.
    pub remaining_nmse: f64,
}

impl Metrics {
    /// Metrics of two f32 sequences.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn measure_f32(reference: &[f32], candidate: &[f32]) -> Self {
        Self::measure(Values::F32(reference), Values::F32(candidate))
    }

    /// Metrics of two f64 sequences.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn measure_f64(reference: &[f64], candidate: &[f64]) -> Self {
        Self::measure(Values::F64(reference), Values::F64(candidate))
    }

    /// Metrics of two sequences of any of the float types. Long ones are read by all threads of the current rayon pool.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn measure(reference: Values<'_>, candidate: Values<'_>) -> Self {
        assert_eq!(reference.len(), candidate.len(), "metrics are of sequences of one length");
        stream::metrics(reference, candidate)
    }

    /// Metrics of each run of `row` values, in order; together they merge to those of the whole. A run's own
    /// [`Metrics::max_abs_diff`] may be absent where an earlier run has a larger one.
    ///
    /// # Panics
    /// If the lengths differ, or `row` is 0.
    pub fn measure_rows(reference: Values<'_>, candidate: Values<'_>, row: usize) -> Vec<Self> {
        assert_eq!(reference.len(), candidate.len(), "metrics are of sequences of one length");
        stream::rows(reference, candidate, row)
    }

    /// The metrics of several parts, in order.
    pub fn merge_all(parts: &[Self]) -> Self {
        parts.iter().fold(Self::default(), |whole, &part| whole.merge(part))
    }

    /// The metrics of this sequence followed by the `later` one.
    pub fn merge(self, later: Self) -> Self {
        let later_peak = later.peak.map(|peak| Peak { index: peak.index + self.len, ..peak });
        Self {
            len: self.len + later.len,
            moments: self.moments.merge(later.moments),
            peak: match (self.peak, later_peak) {
                (Some(peak), Some(next)) if next.abs_diff > peak.abs_diff => Some(next),
                (peak, next) => peak.or(next),
            },
            non_finite: self.non_finite.merge(later.non_finite, self.len),
            unequal: self.unequal | later.unequal,
            not_identical: self.not_identical | later.not_identical,
        }
    }

    /// Number of pairs seen, the non-finite ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no pair was seen. Then no measure is given, and the sequences do not count as equal.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pairs in the sums: those finite on both sides.
    pub fn compared(&self) -> usize {
        self.moments.n
    }

    /// The pairs that are not in the sums.
    pub fn non_finite(&self) -> &NonFinite {
        &self.non_finite
    }

    /// Whether every pair is finite on both sides or the same infinity. No measure is given where this is false.
    pub fn is_finite(&self) -> bool {
        self.non_finite.disagreeing() == 0
    }

    /// Whether all values are equal (0.0 equals -0.0; a NaN equals nothing).
    pub fn is_equal(&self) -> bool {
        !self.is_empty() && self.is_finite() && !self.unequal
    }

    /// Whether all values are equal, the sign of zeros included: bit for bit once widened to one type.
    pub fn is_identical(&self) -> bool {
        self.is_equal() && !self.not_identical
    }

    /// The same sums without the non-finite pairs, to describe the rest of the tensor. They must never let a tap pass.
    pub fn finite_part(&self) -> Self {
        Self { len: self.moments.n, non_finite: NonFinite::default(), ..*self }
    }

    /// Σ(c-r)² / Σr²; 0 for equal sequences, `None` for unequal ones whose reference is all zeros.
    pub fn nmse(&self) -> Option<f64> {
        if self.is_equal() {
            return Some(0.0);
        }
        self.ratio(self.moments.diff_squares, self.moments.reference_energy())
    }

    /// √(Σ(c-r)² / n).
    pub fn rmse(&self) -> Option<f64> {
        self.ratio(self.moments.diff_squares, self.moments.n as f64).map(f64::sqrt)
    }

    /// Σ|c-r| / n.
    pub fn mean_abs_diff(&self) -> Option<f64> {
        self.ratio(self.moments.diff_abs, self.moments.n as f64)
    }

    /// √(Σr² / n): the size of the reference's values.
    pub fn reference_rms(&self) -> Option<f64> {
        self.ratio(self.moments.reference_energy(), self.moments.n as f64).map(f64::sqrt)
    }

    /// √(Σc² / n): the size of the candidate's values.
    pub fn candidate_rms(&self) -> Option<f64> {
        self.ratio(self.moments.candidate_energy(), self.moments.n as f64).map(f64::sqrt)
    }

    /// Pearson's correlation; `None` where a side is constant.
    pub fn correlation(&self) -> Option<f64> {
        let m = &self.moments;
        self.ratio(m.co_variation, m.reference_variation.sqrt() * m.candidate_variation.sqrt())
            .map(|x| x.clamp(-1.0, 1.0))
    }

    /// The cosine of the angle between the two; `None` where a side is all zeros.
    pub fn cosine(&self) -> Option<f64> {
        let m = &self.moments;
        self.ratio(m.product(), m.reference_energy().sqrt() * m.candidate_energy().sqrt()).map(|x| x.clamp(-1.0, 1.0))
    }

    /// The largest |c-r| and where it first occurs. `None` where a pair is not finite, as for every measure.
    pub fn max_abs_diff(&self) -> Option<Peak> {
        self.peak.filter(|_| self.is_finite())
    }

    /// The constant factor nearest the candidate, f = Σcr / Σr², and the NMSE of c / f, to about 1e-14.
    ///
    /// `None` where the reference is all zeros, or the candidate has no part of it (f = 0).
    pub fn best_factor(&self) -> Option<Factor> {
        let m = &self.moments;
        let factor = self.ratio(m.product(), m.reference_energy())?;
        // ‖c - f r‖² / ‖f r‖² in either of two equal forms: near f = 1 that of the differences cancels less.
        let excess = (m.product() - m.reference_energy()) / m.reference_energy();
        let remaining = if excess.abs() < 0.5 {
            (m.diff_squares / m.reference_energy() - excess * excess) / (factor * factor)
        } else {
            (m.candidate_energy() / m.product()) * (m.reference_energy() / m.product()) - 1.0
        };
        let remaining_nmse = remaining.max(0.0);
        (factor != 0.0 && remaining.is_finite()).then_some(Factor { factor, remaining_nmse })
    }

    /// x / y, if every pair is finite, y has not vanished, and nothing has overflowed.
    fn ratio(&self, x: f64, y: f64) -> Option<f64> {
        let ratio = x / y;
        (self.is_finite() && y > LEAST_ENERGY && y.is_finite() && ratio.is_finite()).then_some(ratio)
    }
}

impl NonFinite {
    /// Number of pairs that disagree by not being finite (a NaN on both sides disagrees, and counts twice).
    pub fn disagreeing(&self) -> usize {
        [self.nan_reference, self.nan_candidate, self.inf_reference, self.inf_candidate, self.inf_sign]
            .iter()
            .map(|tally| tally.count)
            .sum()
    }

    /// Index of the first pair that disagrees by not being finite.
    pub fn first_disagreeing(&self) -> Option<usize> {
        [self.nan_reference, self.nan_candidate, self.inf_reference, self.inf_candidate, self.inf_sign]
            .iter()
            .filter_map(|tally| tally.first)
            .min()
    }

    /// Counts a pair with a value that is not finite.
    fn count(&mut self, index: usize, reference: f64, candidate: f64) {
        if reference == candidate {
            return self.inf_equal.add(index);
        }
        if reference.is_nan() {
            self.nan_reference.add(index);
        }
        if candidate.is_nan() {
            self.nan_candidate.add(index);
        }
        match (reference.is_infinite(), candidate.is_infinite()) {
            (true, true) => self.inf_sign.add(index),
            (true, false) if !candidate.is_nan() => self.inf_reference.add(index),
            (false, true) if !reference.is_nan() => self.inf_candidate.add(index),
            _ => {}
        }
    }

    fn merge(self, later: Self, offset: usize) -> Self {
        Self {
            nan_reference: self.nan_reference.merge(later.nan_reference, offset),
            nan_candidate: self.nan_candidate.merge(later.nan_candidate, offset),
            inf_reference: self.inf_reference.merge(later.inf_reference, offset),
            inf_candidate: self.inf_candidate.merge(later.inf_candidate, offset),
            inf_sign: self.inf_sign.merge(later.inf_sign, offset),
            inf_equal: self.inf_equal.merge(later.inf_equal, offset),
        }
    }
}

impl Occurrences {
    fn add(&mut self, index: usize) {
        self.count += 1;
        self.first.get_or_insert(index);
    }

    fn merge(self, later: Self, offset: usize) -> Self {
        Self { count: self.count + later.count, first: self.first.or(later.first.map(|index| index + offset)) }
    }
}
