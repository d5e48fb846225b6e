//! Holds the thresholds for reading a run's tokens and its cache type from its values.

/// Embeddings further apart than this are of different tokens, or of none; nearer than a hundredth of it, of the same.
pub(crate) const OTHER_TOKEN: f64 = 0.1;
/// Two prompts are not aligned if the part between their equal ends has more pairs of positions than this.
pub(crate) const MOST_PAIRS: usize = 1 << 16;
/// Embeddings of one token that differ only in size correlate by more than the first; those of two tokens by less than the second.
pub(crate) const SAME_DIRECTION: f64 = 0.99;
pub(crate) const OTHER_DIRECTION: f64 = 0.5;
/// More than any cache type changes rows, and less than one row of many that belongs to another token.
pub(crate) const OTHER_ROW: f64 = 1e-3;
/// How many values are needed to see whether they were rounded.
pub(crate) const ENOUGH_ROUNDED: usize = 64;
/// Products in f32 leave at most this; without the cache's rounding they leave at least the second number times as much.
pub(crate) const PRODUCTS_COME_OUT: f64 = 1e-10;
pub(crate) const CACHE_TELLS: f64 = 100.0;
/// Two runs of the same tokens are nearer than this, whatever their caches; a tensor in another layout is not.
pub(crate) const SAME_TOKENS: f64 = 0.01;
/// A run worked in 16 bits where this share of its taps hold only such numbers.
pub const SIXTEEN_BITS_TAPS: f64 = 0.5;
/// This many numbers, none of them 0, do not fit 16 bits by chance.
pub const SIXTEEN_BITS_NUMBERS: usize = 16;
/// One in this many must use the last digit of its type: half of those that were rounded do.
pub const SIXTEEN_BITS_DIGITS: usize = 4;
/// How many of a tap's numbers are examined, spread over all of it.
pub const SIXTEEN_BITS_VALUES: usize = 4096;
/// Probabilities are a softmax that includes keys of padding if computing it with these keys leaves at most this share of the error without them.
pub(crate) const UNMASKED_LEAVES: f64 = 1e-3;
