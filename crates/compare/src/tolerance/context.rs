//! Holds the tolerances for a tap's context: noise of a second run, values in part, ranks, masked scores, choices of experts, uniform attention.

// A second right run (report/noise.rs, taps/noise.rs).
/// A candidate may be this many times as far from the reference as the second right run: a factor of two in size.
pub const NOISE_ROOM: f64 = 4.0;
/// With fewer rows than this, a tap's own distance shows little.
pub(crate) const FEW_NOISE_ROWS: usize = 4;
/// A tap of such few rows may count as noisy as the same tap elsewhere, up to this many times its own noise; beyond that the second run is not comparable
/// there.
pub(crate) const NOISE_OF_FEW_ROWS: f64 = 16.0;
/// A single position may be this many times as far off as the second run's worst one.
pub(crate) const NOISE_ROW_ROOM: f64 = 16.0;
/// An operation may multiply the error above its inputs' noise by this.
pub(crate) const NOISE_PASSED_ON: f64 = 2.0;

// Taps that hold a part, and sums over ranks (taps/partial.rs, taps/ranks.rs).
/// Values whose energy is below this many times that of half a unit of their last digit show nothing.
pub(crate) const DIGITS_SHOW: f64 = 100.0;
/// Fewer than one in this many values of a tap are few.
pub(crate) const FEW_OF_A_TAP: usize = 4;
/// A summand explains an error if it leaves less than this share of the error.
pub(crate) const SUMMAND_LEAVES: f64 = 1e-3;

/// A printed sum may be off by this, beside what f32 and rounding cause.
pub(crate) const PRINTED_SUM: f64 = 1e-6;

// Rules over all taps, and the conclusion (rules, conclude).
/// A tap that would be off by this many times its tolerance, had it read what the mask leaves, has not read it if it agrees.
pub(crate) const WOULD_SHOW: f64 = 10.0;
/// The share of taps of right runs that are inconclusive by chance: 9 of 1,375 in a deep model with large channels, 1 in a hundred runs of small ones.
pub(crate) const UNCLEAR_BY_CHANCE: f64 = 0.01;
/// Scores that were not recorded may be off by this many times their tolerance, where a choice is made from them.
pub(crate) const CHOICE_ROOM: f64 = 4.0;
/// Rounding sends no more than this many times its own share of tokens to other experts.
pub(crate) const FLIPS_ROOM: f64 = 3.0;
/// Attention whose largest probability is, on average, below this many times the uniform one shows little.
pub(crate) const NEAR_UNIFORM: f64 = 1.3;
