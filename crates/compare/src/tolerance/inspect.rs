//! Holds the thresholds of `inspect`: what looks wrong in a single dump.

/// Fewer elements than this may be constant, or zero, by chance.
pub(crate) const BY_CHANCE: usize = 16;
/// Rows no further apart than this share of their energy count as equal.
pub(crate) const SAME_ROW: f64 = 1e-10;
/// Logits of two positions closer than this hardly depend on the text.
pub(crate) const SAME_LOGITS: f64 = 1e-3;
/// No activation of a right engine is beyond this.
pub(crate) const ABSURD: f64 = 1e20;
/// A number below this appears only where integers, or nothing at all, were read as floats.
pub(crate) const VANISHING: f64 = 1e-36;
/// No model grows or shrinks a signal by more than this over one layer; the first layer may lift a small embedding.
pub(crate) const LAYER_GROWTH: f64 = 1e3;
pub(crate) const FIRST_LAYER_GROWTH: f64 = 1e5;
/// A signal is tiny if it is below this share of those beside it.
pub(crate) const TINY_SIGNAL: f64 = 1e-6;
/// What may remain where a stream is the sum of its branches, as a share of it; the second is for 16 bits.
pub(crate) const SUM_LEAVES: f64 = 1e-9;
pub(crate) const SUM_LEAVES_COARSE: f64 = 1e-4;
/// A sum that holds less than this share of a stream, measured against it, does not contain the stream.
pub(crate) const STREAM_ABSENT: f64 = 0.25;
/// A branch below this share of the stream may be lost in rounding.
pub(crate) const BRANCH_LOST: f64 = 0.02;
/// A difference of less than this share of the energy does not count.
pub(crate) const NO_TURN: f64 = 1e-10;
/// How far the lengths of rotated heads may differ, relative to them; the second is for 16 bits.
pub(crate) const KEPT_LENGTH: f64 = 1e-3;
pub(crate) const KEPT_LENGTH_COARSE: f64 = 0.03;
/// At position 0, where nothing is rotated, a difference beyond this counts.
pub(crate) const TURNED_AT_ZERO: f64 = 1e-3;
/// Sums of probabilities rounded to bf16 lie within this of 1.
pub(crate) const SUM_ROOM: f64 = 0.02;
/// Sums of probabilities in more than 16 bits lie within this of 1.
pub(crate) const SUM_ROOM_EXACT: f64 = 1e-3;
/// Sums no further apart than this count as equal.
pub(crate) const EVEN_SUMS: f64 = 2e-3;
/// Probability that is more than rounding.
pub(crate) const SOME_PROBABILITY: f64 = 1e-6;
/// A row that gives one key more than this attends to nothing else.
pub(crate) const ALL_PROBABILITY: f64 = 0.999;
/// Scores are of another kind if their mean is further off than this many times the spread of those before the query.
pub(crate) const SCORES_APART: f64 = 2.0;
/// With fewer rows nothing is reported.
pub(crate) const ENOUGH_ROWS: usize = 8;
/// Probabilities that differ by less than this share of the largest count as equal.
pub(crate) const SAME_PROBABILITY: f64 = 1e-5;
