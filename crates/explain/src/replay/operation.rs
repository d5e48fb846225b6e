//! Judges whether an operation is right by itself: one value beside the right one, by the profile's arithmetic.

use firstdiff_compare::{
    Difference, Outcome, PairJudgement, Place, Profile as Judged, Status, TapReport, storage_nmse,
};
use firstdiff_model::Profile;
use firstdiff_trace::{DType, Site};
use ndarray::ArrayD;

use crate::replay::outliers::{leaking, misplaced};
use crate::replay::reason::Reason;
use crate::replay::replayed::Replayed;
use crate::replay::right::{compared, distance, tolerance, wrong_rows};
use crate::tolerance::replay::{EDGE_ROOM, FEW_ROWS, FEW_ROWS_ROOM, OWN_ROUNDING, RECORDED_COARSELY};

/// An operation, and what is known of how far rounding may leave its value from the right one.
pub(crate) struct Operation<'a> {
    pub(crate) place: Place,
    pub(crate) name: &'a str,
    pub(crate) profile: Profile,
    /// Whether it is several operations, of which the inner values are not known.
    pub(crate) is_span: bool,
    /// NMSE that rounding costs it, where that is not what lies between its two right values: a program's own type rounds both.
    pub(crate) noise: Option<f64>,
    /// NMSE that rounding cost the same tap in the steps before.
    pub(crate) noise_before: f64,
    /// NMSE that recording its value and its inputs costs.
    pub(crate) stored: f64,
    /// NMSE by which right runs of it differ from each other, where that was measured.
    pub(crate) spread: f64,
    /// By how much more its sums are off than what does not cancel, where that was measured.
    pub(crate) condition: f64,
}

/// Whether one operation's rounding is larger than its order of summation.
pub(crate) fn is_coarse(profile: Profile) -> bool {
    !matches!(profile, Profile::Exact | Profile::F32)
}

/// Whether each result is rounded to 16 bits.
pub(crate) fn is_half(profile: Profile) -> bool {
    matches!(profile, Profile::F16 | Profile::Bf16)
}

/// Whether recording in this type rounds what the profile's arithmetic gives.
pub(crate) fn loses(profile: Profile, dtype: DType) -> bool {
    match dtype {
        DType::F16 => profile != Profile::F16,
        DType::BF16 => profile != Profile::Bf16,
        DType::F32 | DType::F64 => false,
    }
}

/// NMSE that recording a tap in this type costs.
pub(crate) fn lost(profile: Profile, dtype: DType) -> f64 {
    if loses(profile, dtype) || dtype == DType::F32 { storage_nmse(dtype) } else { 0.0 }
}

/// The unit by which what is recorded of a run in this profile is rounded at least; of another rounding the last bits are what is looked at.
pub(crate) fn recorded_unit(profile: Profile, is_rounding: bool) -> f64 {
    unit_of(match profile {
        _ if is_rounding => DType::F32,
        Profile::Exact | Profile::F32 => DType::F32,
        Profile::F16 => DType::F16,
        Profile::Bf16 | Profile::Ggml { .. } => DType::BF16,
    })
}

/// The unit by which recording in this type rounds.
pub(crate) fn unit_of(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => firstdiff_evidence::F16,
        DType::BF16 => firstdiff_evidence::BF16,
        DType::F32 => firstdiff_evidence::F32,
        DType::F64 => 2f64.powi(-53),
    }
}

/// What compare's judge is told: single operations are held to f32's structure rules whatever the profile.
pub(crate) fn judged_as(profile: Profile) -> Judged {
    match profile {
        Profile::Exact => Judged::Exact,
        Profile::F16 => Judged::F16,
        Profile::Bf16 => Judged::Bf16,
        Profile::F32 | Profile::Ggml { .. } => Judged::F32,
    }
}

impl Operation<'_> {
    /// `own` beside the value in the profile's arithmetic, and in f64.
    pub(crate) fn judged(&self, own: &ArrayD<f64>, right: &ArrayD<f64>, exact: &ArrayD<f64>) -> Replayed {
        let (profile, site, span) = (self.profile, self.place.tap.last_site(), self.is_span);
        let is_softmax = self.place.tap.site == Site::Probs;
        // A few rows may be rounded less than others, or more, by chance: what rounding cost the same tap before counts as well.
        let rows = own.shape().get(site.position_axis()).copied().unwrap_or(0);
        let few_rows = is_half(profile) && rows < FEW_ROWS;
        let before = if span || few_rows { self.noise_before } else { 0.0 };
        let rounding = distance(site, exact, right);
        // The same of a sum that nearly cancels: it may be off by what rounding makes of its terms.
        let is_seen_to_cancel = few_rows && self.condition > 1.0;
        let of_terms = if is_seen_to_cancel { self.condition * recorded_unit(profile, false).powi(2) } else { 0.0 };
        let of_values = self.noise.unwrap_or(rounding).max(before);
        let noise = of_values.max(of_terms);
        let stored = self.stored;
        let scatter = if few_rows { FEW_ROWS_ROOM } else { 1.0 };
        let of_order = self.condition * tolerance(profile, 0.0);
        let allowed_of =
            |noise| (scatter * tolerance(profile, noise)).max(EDGE_ROOM * self.spread).max(of_order) + stored;
        let allowed = allowed_of(noise);
        let judged = |reference: &ArrayD<f64>, allowed| compared(site, reference, own, judged_as(profile), allowed);
        let (mut judgement, shape) = judged(right, allowed);
        // What is nearer to the exact value than the reference's own rounding is never wrong.
        let against_exact = judged(exact, self.noise.map_or(allowed, |_| allowed.max(rounding))).0;
        let exact_nmse = against_exact.metrics.nmse();
        // An engine that rounds less than the profile does is right as well.
        if !judgement.outcome.agrees() && against_exact.outcome.agrees() {
            judgement = against_exact;
        }
        let nmse = judgement.size().unwrap_or(f64::INFINITY);
        let PairJudgement { mut outcome, metrics, balanced, .. } = judgement;
        let nearer = if exact_nmse <= metrics.nmse() { exact } else { right };
        if is_coarse(profile) && nmse <= OWN_ROUNDING * noise && outcome.differs_by_size() {
            // As small as rounding. What has structure is none: a factor, one head, one row.
            let by_structure = compared(site, right, own, judged_as(profile), OWN_ROUNDING * noise + stored).0.outcome;
            outcome = if by_structure.agrees() { Outcome::Inconclusive } else { by_structure };
        }
        // Over a stretch, one or two rows have too few values to say how the error should be spread.
        let few = span && is_coarse(profile) && own.shape().first().is_some_and(|&rows| rows < FEW_ROWS);
        if few
            && matches!(outcome, Outcome::Differs(Difference::Channel { .. } | Difference::Row { .. }))
            && nmse <= allowed
        {
            outcome = Outcome::Rounding;
        }
        // Which numbers another engine rounds to 16 bits is not known; nor is it of values that were recorded in fewer bits than the run has.
        let unknown_rounding = is_coarse(profile) || stored >= RECORDED_COARSELY;
        // What rounding makes of terms that cancel is no factor of what is left of them.
        let is_a_factor =
            nmse > allowed_of(of_values) && matches!(outcome, Outcome::Differs(Difference::Factor { .. }));
        if unknown_rounding && nmse <= allowed && !is_a_factor && matches!(outcome, Outcome::Differs(_)) {
            outcome = Outcome::Rounding;
        }
        let outliers = !unknown_rounding
            && matches!(outcome, Outcome::Rounding | Outcome::Inconclusive)
            && !span
            && stored <= storage_nmse(DType::F32);
        let misplaced = if outliers { misplaced(profile, is_softmax, own, [right, exact], nearer) } else { None };
        let quiet = outcome.agrees() || outcome == Outcome::Inconclusive;
        let leaking = if is_softmax && quiet { leaking(own, exact) } else { None };
        let (status, reason) = match outcome {
            _ if let Some(place) = leaking.or(misplaced) => (Status::Diverged, Some(Reason::InOnePlace(place))),
            Outcome::Exact => (Status::Exact, None),
            Outcome::Rounding => (Status::Rounding, None),
            Outcome::Inconclusive => (Status::Unchecked, Some(Reason::Unclear { nmse, profile, rounding: noise })),
            Outcome::Differs(difference) => (Status::Diverged, Some(Reason::Differs(difference))),
        };
        let report = TapReport {
            status,
            metrics: Some(metrics),
            balanced,
            allowed: Some(allowed),
            shape,
            ..TapReport::unchecked(self.place, self.name.into())
        };
        let wrong_rows = if status == Status::Diverged { wrong_rows(site, own, nearer, allowed) } else { Vec::new() };
        Replayed { reason, exact_nmse, wrong_rows, ..Replayed::of(report) }
    }
}

/// The unit by which an arithmetic rounds its values.
pub(crate) fn own_unit(profile: Profile) -> f64 {
    match profile {
        Profile::Exact => 2f64.powi(-53),
        Profile::F32 | Profile::Ggml { .. } => 2f64.powi(-24),
        Profile::F16 => unit_of(DType::F16),
        Profile::Bf16 => unit_of(DType::BF16),
    }
}
