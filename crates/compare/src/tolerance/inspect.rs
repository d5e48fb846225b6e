//! What looks wrong in one dump by itself?

/// Fewer elements than this are constant, or zero, by chance.
pub(crate) const BY_CHANCE: usize = 16;
/// Rows no further apart than this share of their energy are one row.
pub(crate) const SAME_ROW: f64 = 1e-10;
/// Logits of two positions that are closer than this hardly depend on the text.
pub(crate) const SAME_LOGITS: f64 = 1e-3;
/// Beyond this no activation of a right engine lies.
pub(crate) const ABSURD: f64 = 1e20;
/// Below this a number is one only because integers, or nothing at all, were read as floats.
pub(crate) const VANISHING: f64 = 1e-36;
/// Growth or shrinkage over one layer beyond this is no model's; the first layer may lift a small embedding.
pub(crate) const LAYER_GROWTH: f64 = 1e3;
pub(crate) const FIRST_LAYER_GROWTH: f64 = 1e5;
/// A signal this much smaller than those beside it.
pub(crate) const TINY_SIGNAL: f64 = 1e-6;
/// What may be left where a stream is the sum of its branches, as a share of it; the second in 16 bits.
pub(crate) const SUM_LEAVES: f64 = 1e-9;
pub(crate) const SUM_LEAVES_COARSE: f64 = 1e-4;
/// A sum that holds less of a stream than this, where it stands against it, does not hold the stream.
pub(crate) const STREAM_ABSENT: f64 = 0.25;
/// A branch this much smaller than the stream may be lost in rounding.
pub(crate) const BRANCH_LOST: f64 = 0.02;
/// A difference of less than this share of the energy is none.
pub(crate) const NO_TURN: f64 = 1e-10;
/// How far the lengths of rotated heads may be apart, as a share of them; the second in 16 bits.
pub(crate) const KEPT_LENGTH: f64 = 1e-3;
pub(crate) const KEPT_LENGTH_COARSE: f64 = 0.03;
/// At position 0, where nothing turns, a difference beyond this is one.
pub(crate) const TURNED_AT_ZERO: f64 = 1e-3;
/// Sums of probabilities rounded to bf16 lie within this of 1.
pub(crate) const SUM_ROOM: f64 = 0.02;
/// Sums of probabilities in more than 16 bits lie within this of 1.
pub(crate) const SUM_ROOM_EXACT: f64 = 1e-3;
/// Sums no further apart than this are one number.
pub(crate) const EVEN_SUMS: f64 = 2e-3;
/// Probability that is more than rounding.
pub(crate) const SOME_PROBABILITY: f64 = 1e-6;
/// A row that gives one key more than this looks at nothing else.
pub(crate) const ALL_PROBABILITY: f64 = 0.999;
/// Scores whose means are further apart than this many times the spread of those before the query are of another kind.
pub(crate) const SCORES_APART: f64 = 2.0;
/// Of fewer rows nothing can be said.
pub(crate) const ENOUGH_ROWS: usize = 8;
/// Probabilities that differ by less than this share of the largest are the same.
pub(crate) const SAME_PROBABILITY: f64 = 1e-5;
