//! Holds what replay allows an operation that is right by itself.

// One operation's rounding (replay/right.rs).
/// Rounding of one operation, another order of summation included: a plain loop is six times as far off as sixteen lanes.
pub(crate) const OPERATION_ROOM: f64 = 64.0;
/// What an operation in f64 is held to.
pub(crate) const EXACT_ALLOWED: f64 = 1e-24;
/// No operation is held to less than this in f32.
pub(crate) const LEAST_ALLOWED: f64 = 1e-12;
/// In coarser profiles, by how much two right ways to round one operation differ, in units of what rounding costs.
pub(crate) const HALF_ROOM: f64 = 4.0;
/// By how much two right runs of a stretch may differ more than those that were tried: 220 real ones differ by 1.1 times as much at most.
pub(crate) const EDGE_ROOM: f64 = 2.0;
/// Values on the edge of a step of quantised activations: this share of what quantising costs.
pub(crate) const EDGES: f64 = 0.01;
/// Up to this many times what rounding costs, nobody can tell another rounding from a fault.
pub(crate) const OWN_ROUNDING: f64 = 4.0;
/// What an arithmetic in f32 leaves of the reference's own values at the most: a table of f16 leaves up to a tenth of it.
pub(crate) const MOST_OF_THE_REFERENCE: f64 = 1e-5;
/// How many times as far off as the reference itself a tap may be.
pub(crate) const REFERENCE_ROOM: f64 = 2.0;
/// How much more than the error of inputs moved by chance the rounding of inputs may cost.
pub(crate) const INPUT_ROOM: f64 = 4.0;
/// Which share of the error of scores that are off by one number a row that number leaves at most.
pub(crate) const SHIFT_LEAVES: f64 = 0.25;
/// How far the order of its sums moves a number, about, as a share of it: twice the root of what f32 is allowed of one.
pub(crate) const ORDER_OF_SUMS: f64 = 2e-6;
/// What recording costs from which on it is that of 16 bits: what has structure below what is allowed is rounding then.
pub(crate) const RECORDED_COARSELY: f64 = 1e-8;
/// By how many units of rounding two values may differ that are taken for each other when the largest are chosen.
pub(crate) const CHOICE_ROOM: f64 = 64.0;
/// How much further than the rounding that was tried another right run may move what is chosen among.
pub(crate) const CHOICE_MOVES: f64 = 8.0;
/// Rows below which no channel is looked at by itself over a stretch in a coarse arithmetic.
pub(crate) const FEW_ROWS: usize = 4;
/// By how much more so few rows scatter: one decoded token of JAX in bf16 was 1.4 times what the prefill of eleven allows.
pub(crate) const FEW_ROWS_ROOM: f64 = 2.0;

// An error in one place (replay/local.rs).
/// Standard deviations of rounding that one element may be off by, and one row's mean factor.
pub(crate) const ELEMENT_SIGMAS: f64 = 12.0;
pub(crate) const ROW_SIGMAS: f64 = 8.0;
/// Elements a row needs, by the spread of its energy, for a factor to be no element's own rounding.
pub(crate) const ROW_SPREAD: f64 = 8.0;
/// In ggml, a factor that values on the edge of a step do not make.
pub(crate) const FLIPS: f64 = 1e-5;
/// In ggml, the NMSE of a row from which on one element may not hold most of the error; and how many elements a row needs for that.
pub(crate) const ROW_SEEN: f64 = 1e-11;
pub(crate) const ROW_WIDE: usize = 32;

// The type of a cache, sums of the residual stream, other buffers (program/kept.rs, residual.rs, doubts.rs, explain/misrecorded.rs, explain/taken_back.rs, explain/right_at_the_end.rs).
/// What a type of cache takes away of the error of a tap that comes out right with it, at least this many times: right by a looser tolerance
/// alone is no sign of it.
pub(crate) const CACHE_TELLS: f64 = 10.0;
/// The same of each tap, where most are so much nearer.
pub(crate) const CACHE_NEARER: f64 = 2.0;
/// A pivot below this makes a system of equations singular.
pub(crate) const SINGULAR: f64 = 1e-9;
/// NMSE below which a sum is what the fit says.
pub(crate) const SUM_IS: f64 = 1e-6;
/// Times the tolerance that a wrong tap must be off by what it reads, to be one that takes an error back when it is right by what stands before.
pub(crate) const TAKES_BACK: f64 = 100.0;
/// Share of its input that GELU in f32 may be off by: 1 + erf(x) is rounded beside 1. Of recordings by PyTorch 2.9 it was 2.7e-7 at the most, in 241 taps.
pub(crate) const BESIDE_ONE: f64 = 4e-7;
/// Rows that were sorted by their expert, and are wrong, stand in the order that leaves no more than this share of what is off as they are stored.
pub(crate) const ORDER_LEAVES: f64 = 0.5;
/// What rounding a table's numbers to 16 bits costs at the most, in squares of the unit: an error is even up to half of it.
pub(crate) const TABLE_SHARE: f64 = 1.0 / 3.0;
/// By how much the probabilities of a row may miss 1, with the few bits of bf16.
pub(crate) const ADDS_UP: f64 = 0.02;
/// As a share of a number, how near an edge of the cache's steps it may fall to either side: what rounding to f32 adds up to on the way.
pub(crate) const NEAR_AN_EDGE: f64 = 1.0 / (1 << 20) as f64;
/// How often what is normed and weighted by one operation of the program is rounded by engines that do one after the other.
pub(crate) const NORM_AND_GAIN: f64 = 2.0;
