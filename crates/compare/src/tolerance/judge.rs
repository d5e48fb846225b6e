//! What is allowed when two tensors are judged: room beyond rounding, how structure stands out, what is inherited, what a mask leaves.

use firstdiff_trace::Site;

use crate::tolerance::Profile;

// Of a tensor, as a whole and in its parts (judge/tensor.rs).
/// A row's error is relative to its own energy, which may be small: it scatters this much more than the whole. A channel's is relative
/// to no less than the mean energy, and has to stand out as well.
pub(crate) const ROW_ROOM: f64 = 100.0;
pub(crate) const CHANNEL_ROOM: f64 = 2.0;
/// A channel this many times worse than the median channel is no chance.
pub(crate) const CHANNEL_OUTLIER: f64 = 100.0;
/// A channel of great size has more of the error than others, and of the error that is passed on.
pub(crate) const CHANNEL_INHERITS: f64 = 40.0;
/// Of fewer positions a head or a channel is too few values to tell structure from chance.
pub(crate) const FEW_POSITIONS: usize = 4;
/// A position that is so many times further off than the median, each beside what it reads, is no chance; of fewer there is no median.
pub(crate) const ROW_OUTLIER: f64 = 40.0;
pub(crate) const ENOUGH_POSITIONS: usize = 8;
/// Of a position with less than this share of the usual energy (what an activation leaves of large negative values) nothing is left to be off by.
pub(crate) const LEAST_ENERGY_SHARE: f64 = 1e-4;
/// Factors of what is added up may come out so many times as large.
pub(crate) const FACTOR_GROWS: f64 = 3.0;
/// The energy of a constant factor is this many times the error of what is read, or is taken for a part of it. Right runs of
/// `scripts/suites/test_rounding.py` reach 0.95 over a whole tensor, 12 where it has few positions, 8 in the products of one head and 2 in other heads.
pub(crate) const WHOLE_STANDS_OUT: f64 = 1.5;
pub(crate) const FEW_STAND_OUT: f64 = 16.0;
pub(crate) const PRODUCTS_STAND_OUT: f64 = 12.0;
pub(crate) const HEAD_STANDS_OUT: f64 = 4.0;
/// With an NMSE beyond this (a correlation below some 0.97) too little is left to agree, and nothing to be learnt of a second run.
pub const DROWNED: f64 = 0.05;
/// The balanced NMSE may be so many times that of the whole: positions scatter.
pub(crate) const BALANCED_ROOM: f64 = 2.0;
/// One operation's own rounding scatters by this.
pub(crate) const FRESH_ROOM: f64 = 6.0;
/// A constant factor must explain this share of the error, and stand this many standard errors from 1.
pub(crate) const FACTOR_SHARE: f64 = 0.2;
pub(crate) const FACTOR_SIGMAS: f64 = 6.0;
/// With so many values a factor has to stand out twice as far.
pub(crate) const FEW_FACTOR_VALUES: f64 = 4.0;
/// Independent errors in one position, as far as a constant factor is concerned.
pub(crate) const VALUES_A_POSITION: f64 = 4.0;
/// A constant factor is all that is wrong where it leaves less than this share of the error.
pub(crate) const FACTOR_LEAVES: f64 = 0.1;
/// What a K/V cache costs may grow to this many times as much where errors are inherited.
pub(crate) const CACHE_GROWS: f64 = 1e3;
/// An energy below this is no divisor: what it is compared with may have vanished. The smallest square of an f32 is 2e-90.
pub(crate) const NO_DIVISOR: f64 = 1e-150;

/// Inherited errors pass up to this many times what the profile allows by itself: in f32 that is still 1e-4 at the most.
pub(crate) fn inherits_most(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e6,
        Profile::F16 => 1e3,
        Profile::Bf16 | Profile::Ggml => 30.0,
    }
}

// What an operation passes on (judge/inherited.rs, taps/propagation.rs).
/// As a rule no more than this many times the most that was seen.
pub(crate) const INHERITED_USUAL: f64 = 1.5;
/// And never more than this many times: between the two it is unclear.
pub(crate) const INHERITED_MOST: f64 = 6.0;
/// What a norm passes on is computed, but for how the error shares out.
pub(crate) const NORM_ROOM: f64 = 2.0;
/// A position's error scatters this much more than the whole's.
pub(crate) const POSITION_ROOM: f64 = 4.0;
/// Several operations round several times.
pub(crate) const RANGE_OWN: f64 = 3.0;
/// How many times the NMSE of what it reads a layer writes as a rule.
pub(crate) const RANGE_USUAL: f64 = 10.0;

/// How many times the NMSE of what it reads an operation was seen to write, at the most. (Of the mean square for what is made by e^x, of
/// the squares for sums: (a + b)² is at most 2 (a² + b²).)
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
        // Judged as a range of operations, each of them perhaps a norm.
        Open(_) => 35.0,
        H0 | H | HAttn => 2.0,
    }
}

/// NMSE of the rounding of a layer's operations together, in the coarse profiles.
pub(crate) fn range_fresh(profile: Profile) -> Option<f64> {
    match profile {
        Profile::Exact | Profile::F32 => None,
        Profile::F16 => Some(4e-6),
        Profile::Bf16 => Some(1e-4),
        Profile::Ggml => Some(1e-3),
    }
}

/// How many times the NMSE of what it reads a layer may write at the very most. Models that amplify rounding do so by as much as this; in the
/// coarse profiles more would leave nothing to find.
pub(crate) fn range_growth(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e4,
        Profile::F16 => 1e3,
        Profile::Bf16 | Profile::Ggml => 100.0,
    }
}

/// NMSE of one operation's own rounding in the coarse profiles, with some room; the table's is for all operations up to a depth.
pub(crate) fn fresh(profile: Profile, site: Site) -> Option<f64> {
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
/// Below this a score is taken for masked: engines write -inf, the least f32 or f16, -1e9, -1e4 and sums with those.
/// e^-9000 is 0 in every arithmetic, so two such scores mean the same wherever a row has any score that counts.
pub const MASKED: f64 = -9000.0;

/// Whether a number of such a tap says that a key is masked, and is none to compute with: -inf, or a fill that is as good. No norm may hold it.
pub fn is_masked(site: Site, value: f64) -> bool {
    site == Site::Scores && value <= MASKED
}

/// e to the minus this is 0 in f64.
pub(crate) const EXP_VANISHES: f64 = 746.0;
/// A probability below this is underflow: f32 ends at 1e-38 (1e-45 with subnormal numbers), and scores differ by rounding.
pub const UNDERFLOW: f64 = 1e-30;
/// The same in f16, whose smallest numbers are 6e-8: what a softmax in f16 makes 0.
pub(crate) const UNDERFLOW_F16: f64 = 1.2e-7;
/// An engine may cut off the tail of e^x; a mask takes away more than this somewhere.
pub(crate) const TAIL: f64 = 1e-10;
/// The same where scores were rounded to 8 bits: those far apart may be off by more.
pub(crate) const TAIL_BF16: f64 = 1e-12;
/// What underflows in some number format is no larger than this many times the smallest number that the tensor holds elsewhere,
pub(crate) const FLUSH_ROOM: f64 = 4.0;
/// nor than this many times the smallest normal number of f16.
pub(crate) const NORMAL_F16: f64 = 6.2e-5;
/// At the edge of a mask stands any probability; at the edge of underflow, none as large as this.
pub(crate) const MASK_EDGE: f64 = 1e-3;
/// Scores near the end of e^x may be off by so many times as much as those that are seen.
pub(crate) const SCORES_SCATTER: f64 = 2.0;
/// Of fewer rows at its edge a window may be chance.
pub(crate) const WINDOW_ROWS: usize = 3;

/// Sums of probabilities may be off by this in a profile: each is rounded, by 2^-11 of itself in f16 and 2^-9 in bf16, and so is what all are divided by.
pub(crate) fn sum_room(profile: Profile) -> f64 {
    match profile {
        Profile::Exact | Profile::F32 => 1e-5,
        Profile::Ggml => 1e-3,
        Profile::F16 => 4e-3,
        Profile::Bf16 => 16e-3,
    }
}
