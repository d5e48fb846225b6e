//! Holds the sums of a range of pairs, and merges those of two ranges.

/// Means, centred second moments and sums of differences of n finite pairs.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Moments {
    /// Number of pairs.
    pub(super) n: usize,
    /// Σ(c-r)².
    pub(super) diff_squares: f64,
    /// Σ|c-r|.
    pub(super) diff_abs: f64,
    /// r̄.
    pub(super) reference_mean: f64,
    /// c̄.
    pub(super) candidate_mean: f64,
    /// Σ(r-r̄)².
    pub(super) reference_variation: f64,
    /// Σ(c-c̄)².
    pub(super) candidate_variation: f64,
    /// Σ(r-r̄)(c-c̄).
    pub(super) co_variation: f64,
}

impl Moments {
    /// Both ranges as one.
    pub(super) fn merge(self, later: Self) -> Self {
        if self.n == 0 || later.n == 0 {
            return if self.n == 0 { later } else { self };
        }
        let n = self.n + later.n;
        let share = later.n as f64 / n as f64;
        let weight = self.n as f64 * share;
        let r = later.reference_mean - self.reference_mean;
        let c = later.candidate_mean - self.candidate_mean;
        Self {
            n,
            diff_squares: self.diff_squares + later.diff_squares,
            diff_abs: self.diff_abs + later.diff_abs,
            reference_mean: self.reference_mean + r * share,
            candidate_mean: self.candidate_mean + c * share,
            reference_variation: self.reference_variation + later.reference_variation + r * r * weight,
            candidate_variation: self.candidate_variation + later.candidate_variation + c * c * weight,
            co_variation: self.co_variation + later.co_variation + r * c * weight,
        }
    }

    /// Σr².
    pub(super) fn reference_energy(&self) -> f64 {
        self.reference_variation + self.n as f64 * self.reference_mean * self.reference_mean
    }

    /// Σc².
    pub(super) fn candidate_energy(&self) -> f64 {
        self.candidate_variation + self.n as f64 * self.candidate_mean * self.candidate_mean
    }

    /// Σrc.
    pub(super) fn product(&self) -> f64 {
        self.co_variation + self.n as f64 * self.reference_mean * self.candidate_mean
    }
}
