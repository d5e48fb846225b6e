//! What do the values of a run say of its tokens and its cache?

/// Embeddings further apart than this are of different tokens, or of none; nearer than a hundredth of it, of the same.
pub(crate) const OTHER_TOKEN: f64 = 0.1;
/// Two prompts of more pairs of positions than this, where they are not alike at either end, are not aligned.
pub(crate) const MOST_PAIRS: usize = 1 << 16;
/// Embeddings of one token that differ in their size alone correlate by more than the first; those of two tokens by less than the second.
pub(crate) const SAME_DIRECTION: f64 = 0.99;
pub(crate) const OTHER_DIRECTION: f64 = 0.5;
/// Further apart than any type a cache is kept in puts them, and nearer than one row of many that is another's.
pub(crate) const OTHER_ROW: f64 = 1e-3;
/// Values of which it can be told whether they were rounded.
pub(crate) const ENOUGH_ROUNDED: usize = 64;
/// Products in f32 leave no more than this of themselves, and without the cache's rounding so many times as much.
pub(crate) const PRODUCTS_COME_OUT: f64 = 1e-10;
pub(crate) const CACHE_TELLS: f64 = 100.0;
/// Two runs of the same tokens are nearer than this, whatever cache they keep, and a tensor in another layout is not.
pub(crate) const SAME_TOKENS: f64 = 0.01;
/// A run worked in 16 bits where this share of its taps hold such numbers alone.
pub const SIXTEEN_BITS_TAPS: f64 = 0.5;
/// So many numbers, none of them 0, are of 16 bits by no chance.
pub const SIXTEEN_BITS_NUMBERS: usize = 16;
/// One in so many must take the last digit of its type: half of those that were rounded do.
pub const SIXTEEN_BITS_DIGITS: usize = 4;
/// So many of a tap's numbers are looked at, spread over all of it.
pub const SIXTEEN_BITS_VALUES: usize = 4096;
/// Probabilities are the softmax of keys that padding should hide where these keys leave no more than this of what is left without them.
pub(crate) const UNMASKED_LEAVES: f64 = 1e-3;
