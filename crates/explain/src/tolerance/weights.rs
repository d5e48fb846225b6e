//! Holds when two weight files are the same weights.

/// Other ways to quantise than to nearest cost up to this many times the error of the nearest level; a single row or column three times that.
pub(crate) const QUANTISING_ROOM: f64 = 2.0;
pub(crate) const ROW_QUANTISING_ROOM: f64 = 3.0 * QUANTISING_ROOM;
/// NMSE of f32 arithmetic: a product taken in another order.
pub(crate) const OTHER_ORDER: f64 = 1e-13;
/// No weights are held to less than this.
pub(crate) const LEAST_ALLOWED: f64 = 1e-12;
/// One element in so many is equal by chance.
pub(crate) const COPY_SHARE: usize = 20;
/// Standard deviations that chance does not reach, and those that it does not in one of many rows.
pub(crate) const CHANCE_SIGMAS: f64 = 8.0;
pub(crate) const SIGMAS_OF_A_ROW: f64 = 6.0;
/// Errors of fewer values may be of one sign by chance.
pub(crate) const LEAST_ROW: usize = 64;
/// A line for each group of values takes this much of an error that a wrong scale or minimum makes.
pub(crate) const LINED: f64 = 0.9;
/// Part of a row's mean noise below which a row is not looked at by itself.
pub(crate) const FAINT_ROW: f64 = 1e-3;
/// Part of a step of 16-bit floats that the mean of trained values is rounded by.
pub(crate) const MEAN_BIAS: f64 = 0.08;
/// Part of what is due below which an error may have a pattern.
pub(crate) const LITTLE_OF_DUE: f64 = 0.5;
/// Values of so few sizes, as ternary ones, are quantised with a pattern; and so are values that so few levels stand for.
pub(crate) const FEW_SIZES: usize = 8;
/// So many different values among 32 are of a grid that the model was trained on.
pub(crate) const GRID_VALUES: usize = 20;
pub(crate) const FEW_LEVELS: usize = 4;
/// However few levels stand for the values, these lie about the levels: a slope further from 1 than this is a factor.
pub(crate) const SLOPE_OF_FEW_LEVELS: f64 = 0.6;
/// An explanation leaves less than this part of the error.
pub(crate) const CHANGE_LEAVES: f64 = 0.3;
/// Matrices further apart than this have nothing in common.
pub(crate) const OTHER_MATRIX: f64 = 0.5;
/// NMSE below which a part comes out.
pub(crate) const PART_LEAVES: f64 = 1e-9;
/// Codebooks come this near to the best that their bits allow.
pub(crate) const CODEBOOK_ROOM: f32 = 2.0;
/// Values that differ by less than this share are the same value, computed otherwise.
pub(crate) const SAME_VALUE: f32 = 1e-5;
/// Values smaller than this are taken for as large.
pub(crate) const SMALL_VALUE: f32 = 1e-3;
/// NMSE of the first elements below which one tensor is the other, shifted.
pub(crate) const SAME_START: f64 = 1e-3;
/// An offset of blocks below this is none, and a slope within the second of 1.
pub(crate) const NO_OFFSET: f64 = 1e-9;
pub(crate) const SLOPE_OF_ONE: f64 = 1e-4;
/// A difference of a block is 0 or the largest one to this share of the largest.
pub(crate) const WHOLE_STEP: f32 = 1e-4;
/// Values that spread by less than this share of their energy have no slope.
pub(crate) const SPREAD_FOR_SLOPE: f64 = 1e-12;
/// Rows nearer than this (NMSE) are one row, however many bits it is stored in; others are 2 apart. Rows too short for blocks are stored in 16 bits at the least.
pub(crate) const SAME_ROW: f64 = 0.02;
pub(crate) const SAME_NARROW_ROW: f64 = 1e-5;
/// How far sums of signed elements of one row may be apart: so many times what the NMSE of one row makes of a row of length 1.
pub(crate) const SKETCH_ROOM: f64 = 4.25;
/// Tensors whose cosine is smaller than this, of either sign, have nothing in common.
pub(crate) const NOTHING_IN_COMMON: f64 = 0.2;
/// Forms that are tried of a tensor, about.
pub(crate) const FORMS: usize = 128;
/// Elements whose rows carry as good as all, each for so many others.
pub(crate) const ENOUGH_ELEMENTS: usize = 1 << 18;
/// Sizes of groups that quantisation uses.
pub(crate) const PART_SIZES: [usize; 5] = [16, 32, 64, 128, 256];
/// Steps of one grid are one to this share.
pub(crate) const SAME_STEP: f64 = 1e-3;
/// The highest rank that is looked for, of a quarter of the smaller side at the most; and rows up to which an order is said.
pub(crate) const MOST_RANK: usize = 64;
pub(crate) const MOST_ORDERED: usize = 1 << 14;
/// A tensor nearer than this (NMSE) to what it should be made of is made so, but for mistakes in parts of it.
pub(crate) const MADE_SO: f64 = 0.1;
/// Some elements of it, a row in eight, are then no further off than this; of matrices that have nothing in common they are 2 apart.
pub(crate) const SAMPLE_MAY_BE: f64 = 1.0;
/// A vector is another one, as it is or changed in a known way, where no more than 16 bits lie between them.
pub(crate) const SAME_VECTOR: f64 = 1e-4;
/// Some elements of what may be another tensor are nearer to it than this (NMSE).
pub(crate) const LIKE_ITSELF: f64 = 0.2;
/// Fourth moments of tensors of the same values are no further apart than this; the second where one is stored in few bits.
pub(crate) const SAME_MOMENT: f64 = 1e-4;
pub(crate) const SAME_MOMENT_COARSE: f64 = 0.05;
/// Laws are sought of tensors of so many elements at the most; of those of many rows first in twice so many of them, a multiple of each size of a group.
pub(crate) const MOST_ELEMENTS: usize = 1 << 27;
pub(crate) const WINDOW: usize = 256;
