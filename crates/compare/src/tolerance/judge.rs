//! Holds the tolerances for judging two tensors: room beyond rounding, when structure stands out, inherited errors, masks.

use firstdiff_trace::Site;

use crate::tolerance::Profile;

// Of a tensor, as a whole and in its parts (judge/tensor.rs).
/// A row's error is relative to its own energy, which may be small, so that it scatters this much more than the whole. A channel's is relative to at least
/// the mean energy, and must stand out as well.
pub(crate) const ROW_ROOM: f64 = 100.0;
pub(crate) const CHANNEL_ROOM: f64 = 2.0;
/// A channel this many times worse than the median channel is not chance.
pub(crate) const CHANNEL_OUTLIER: f64 = 100.0;
/// A large channel has more of the error than others, and also of inherited error.
pub(crate) const CHANNEL_INHERITS: f64 = 40.0;
/// With fewer positions, a head or a channel has too few values to distinguish structure from chance.
pub(crate) const FEW_POSITIONS: usize = 4;
/// A position this many times further off than the median, each relative to its inputs' error, is not chance; with fewer positions there is no median.
pub(crate) const ROW_OUTLIER: f64 = 40.0;
pub(crate) const ENOUGH_POSITIONS: usize = 8;
/// A position with less than this share of the usual energy (what an activation leaves of large negative values) is measured against this share instead.
pub(crate) const LEAST_ENERGY_SHARE: f64 = 1e-4;
/// The factors of summands may come out this many times as large in the sum.
pub(crate) const FACTOR_GROWS: f64 = 3.0;
/// The energy of a constant factor must be this many times the inputs' error, or it counts as part of that. Right runs of `scripts/suites/test_rounding.py`
/// reach 0.95 over a whole tensor, 12 where it has few positions, 8 in the products of one head and 2 in other heads.
pub(crate) const WHOLE_STANDS_OUT: f64 = 1.5;
pub(crate) const FEW_STAND_OUT: f64 = 16.0;
pub(crate) const PRODUCTS_STAND_OUT: f64 = 12.0;
pub(crate) const HEAD_STANDS_OUT: f64 = 4.0;
/// With an NMSE beyond this (a correlation below about 0.97) too little agrees, and a second run shows nothing.
pub const SECOND_RUN_LIMIT: f64 = 0.05;
/// The balanced NMSE may be this many times that of the whole: positions scatter.
pub(crate) const BALANCED_ROOM: f64 = 2.0;
/// One operation's own rounding scatters by this.
pub(crate) const FRESH_ROOM: f64 = 6.0;
/// A constant factor must explain this share of the error, and stand this many standard errors from 1.
pub(crate) const FACTOR_SHARE: f64 = 0.2;
pub(crate) const FACTOR_SIGMAS: f64 = 6.0;
/// With this many values, a factor must stand out twice as far.
pub(crate) const FEW_FACTOR_VALUES: f64 = 4.0;
/// Independent errors in one position, as far as a constant factor is concerned.
pub(crate) const VALUES_A_POSITION: f64 = 4.0;
/// The share of a wrong tap's NMSE that is left where what is made of it has taken the error back.
pub(crate) const TAKEN_BACK: f64 = 0.01;
/// A constant factor is all that is wrong where it leaves less than this share of the error.
pub(crate) const FACTOR_LEAVES: f64 = 0.1;
/// Where errors are inherited, the error of a K/V cache may grow to this many times.
pub(crate) const CACHE_GROWS: f64 = 1e3;
/// An energy below this is no divisor: the value compared with it may have underflowed. The smallest square of an f32 is 2e-90.
pub(crate) const LEAST_ENERGY: f64 = 1e-150;

/// Inherited errors pass up to this many times the profile's own tolerance: in f32 that is still at most 1e-4.
pub(crate) fn inherits_most(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e6,
        Profile::F16 => 1e3,
        Profile::Bf16 | Profile::Ggml => 30.0,
    }
}

// What an operation passes on (judge/inherited.rs, taps/propagation.rs).
/// An inherited error is usually at most this many times the largest seen.
pub(crate) const INHERITED_USUAL: f64 = 1.5;
/// It is never more than this many times; in between it is inconclusive.
pub(crate) const INHERITED_MOST: f64 = 6.0;
/// What a norm passes on is computed, except how the error is distributed.
pub(crate) const NORM_ROOM: f64 = 2.0;
/// A position's error scatters this much more than the whole's.
pub(crate) const POSITION_ROOM: f64 = 4.0;
/// Several operations round several times.
pub(crate) const RANGE_OWN: f64 = 3.0;
/// A layer usually writes this many times the NMSE of its inputs.
pub(crate) const RANGE_USUAL: f64 = 10.0;

/// The largest NMSE that an operation was seen to write, as a multiple of that of its inputs. (Of the mean square for results of e^x, of the squares for
/// sums: (a + b)² is at most 2 (a² + b²).)
pub(crate) fn growth(site: Site) -> f64 {
    use Site::*;
    match site {
        AttnNorm | FfnNorm | FinalNorm | QNorm | KNorm | AttnPostNorm | FfnPostNorm => 35.0,
        Q | K => 3.2,
        V | AttnOut | FfnOut => 7.6,
        FfnGate | FfnUp | RouterLogits => 2.7,
        Logits => 1.2,
        QRope | KRope => 2.8,
        Qk => 15.0,
        Scores => 1.5,
        Probs | RouterProbs => 4.1,
        Context => 5.4,
        FfnAct => 3.0,
        // Judged as a range of operations, each possibly a norm.
        Open(_) => 35.0,
        H0 | H | HAttn => 2.0,
    }
}

/// NMSE of the rounding of a layer's operations together, in the coarse profiles.
pub(crate) fn layer_nmse(profile: Profile) -> Option<f64> {
    match profile {
        Profile::Exact | Profile::F32 => None,
        Profile::F16 => Some(4e-6),
        Profile::Bf16 => Some(1e-4),
        Profile::Ggml => Some(1e-3),
    }
}

/// The largest NMSE that a layer may write, as a multiple of that of its inputs. Models that amplify rounding reach this; in the coarse profiles more would
/// leave nothing to find.
pub(crate) fn range_growth(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e4,
        Profile::F16 => 1e3,
        Profile::Bf16 | Profile::Ggml => 100.0,
    }
}

/// NMSE of one operation's own rounding in the coarse profiles, with some room; the table's is for all operations up to a depth.
pub(crate) fn op_nmse(profile: Profile, site: Site) -> Option<f64> {
    use Site::{AttnOut, FfnGate, FfnOut, FfnUp, K, Logits, Q, RouterLogits, V};
    let product = matches!(site, Q | K | V | AttnOut | FfnGate | FfnUp | FfnOut | RouterLogits | Logits);
    match profile {
        Profile::Exact | Profile::F32 => None,
        Profile::F16 => Some(1e-6),
        Profile::Bf16 => Some(3e-5),
        // Only products of weights are quantised.
        Profile::Ggml => Some(if product { 1e-3 } else { 3e-5 }),
    }
}

// Masks and underflow (judge/leak.rs, layout/pair.rs).
/// A score below this counts as masked: engines write -inf, the least f32 or f16, -1e9, -1e4 and sums with those. e^-9000 is 0 in every arithmetic, so that
/// two such scores mean the same wherever a row has any score that counts.
pub const MASKED: f64 = -9000.0;

/// Whether a value of such a tap marks a masked key, and is not a number to compute with: -inf, or an equivalent fill. No norm may include it.
pub fn is_masked(site: Site, value: f64) -> bool {
    site == Site::Scores && value <= MASKED
}

/// e to the power of minus this is 0 in f64.
pub(crate) const EXP_VANISHES: f64 = 746.0;
/// A probability below this is underflow: the smallest f32 is 1e-38 (1e-45 with subnormal numbers), and scores differ by rounding.
pub const UNDERFLOW: f64 = 1e-30;
/// The same in f16, whose smallest numbers are 6e-8: what a softmax in f16 makes 0.
pub(crate) const UNDERFLOW_F16: f64 = 1.2e-7;
/// An engine may cut off the tail of e^x; a mask removes more than this somewhere.
pub(crate) const TAIL: f64 = 1e-10;
/// The same where scores were rounded to 8 bits: those far apart may be off by more.
pub(crate) const TAIL_BF16: f64 = 1e-12;
/// What underflows in some number format is no larger than this many times the smallest number that the tensor holds elsewhere,
pub(crate) const UNDERFLOW_ROOM: f64 = 4.0;
/// nor than this many times the smallest normal number of f16.
pub(crate) const NORMAL_F16: f64 = 6.2e-5;
/// At the edge of a mask any probability may occur; at the edge of underflow, none as large as this.
pub(crate) const MASK_EDGE: f64 = 1e-3;
/// Scores near the limit of e^x may be off by this many times as much as those that are seen.
pub(crate) const SCORES_SCATTER: f64 = 2.0;
/// With fewer rows at its edge, a window may be chance.
pub(crate) const WINDOW_ROWS: usize = 3;

/// Sums of probabilities may be off by this in a profile: each is rounded, by 2^-11 of itself in f16 and 2^-9 in bf16, and so is their common divisor.
pub(crate) fn sum_room(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e-5,
        Profile::Ggml => 1e-3,
        Profile::F16 => 4e-3,
        Profile::Bf16 => 16e-3,
    }
}
