//! Judges whether two tensors are the same but for what their element types cost: by what the values are, then by how much they are off and where.

use firstdiff_compare::metrics::Metrics;
use firstdiff_model::{Half, Storage};
use rayon::prelude::*;

use super::side::Tensor;
use super::{Options, State, noise};
use crate::tolerance::weights::{
    CHANCE_SIGMAS, COPY_SHARE, FAINT_ROW, FEW_LEVELS, FEW_SIZES, GRID_VALUES, LEAST_ROW, LINED, LITTLE_OF_DUE,
    MEAN_BIAS, OTHER_ORDER, QUANTISING_ROOM, ROW_QUANTISING_ROOM, SIGMAS_OF_A_ROW, SLOPE_OF_FEW_LEVELS,
    SPREAD_FOR_SLOPE,
};

/// How B's values can follow from A's, or A's from B's, without anything being lost but by rounding: each a bit.
mod follows {
    /// B is A but for f32 arithmetic.
    pub(super) const ARITHMETIC: u8 = 1;
    /// B is A rounded to f16.
    pub(super) const F16: u8 = 2;
    /// B is A rounded to bf16.
    pub(super) const BF16: u8 = 4;
    /// A is B rounded to f16.
    pub(super) const TO_F16: u8 = 8;
    /// A is B rounded to bf16.
    pub(super) const TO_BF16: u8 = 16;
    /// B is A cut to bf16.
    pub(super) const CUT: u8 = 32;
    /// Those by which B may be what A was made of.
    pub(super) const BACK: u8 = TO_F16 | TO_BF16;
    pub(super) const ALL: u8 = 63;
}

/// A step of the coarser of the 16-bit floats by which A may follow from B, relative to the number.
fn unit(follows: u8) -> f64 {
    if follows & follows::TO_BF16 != 0 { 2f64.powi(-8) } else { 2f64.powi(-11) }
}

/// What was measured of a tile.
struct Tile {
    metrics: Metrics,
    /// Whether both hold numbers alone, which infinities are not, though they are equal.
    is_finite: bool,
    follows: u8,
    /// Elements that are equal and not zero.
    equal: usize,
    /// Of a pair that a type with few levels stands between.
    noise: Option<Noise>,
}

/// An error against what the types must cost.
struct Noise {
    /// Σ error², and Σ of the variances that are due.
    error: f64,
    due: f64,
    /// The worst row: its error over what is due.
    worst_row: f64,
    /// The same sums for each column.
    columns: Vec<(f64, f64)>,
    /// Σ x², Σ x·y of the coarser side's values x and the other's y, and Σ x² times the variance due; what of the error a line takes in each
    /// group of values.
    xx: f64,
    xy: f64,
    spread: f64,
    lined: f64,
    /// Whether the values are of few sizes, or few levels stand for them.
    few_sizes: bool,
    /// What rounding B to f16 and to bf16 leaves, as a sum of variances; and whether the errors of some row are nearly all of one sign, as a factor on it
    /// makes them.
    rounding: [f64; 2],
    leans: bool,
}

/// What was measured of two tensors.
pub(crate) struct Measured {
    tiles: Vec<Tile>,
    identical: bool,
    /// A is quantised, and B is what an engine wrote of it, which is not.
    dequantised: bool,
    /// Both are quantised.
    both: bool,
    /// Either is quantised.
    quantised: bool,
}

/// Why two tensors are taken for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Same {
    /// Every value is.
    Values,
    /// Each is the other rounded; `cut`: the bits behind were dropped.
    Rounded { cut: bool },
    /// One was quantised, and the other not, or otherwise.
    Noise,
}

impl Same {
    pub(crate) fn state(self) -> State {
        if self == Same::Values { State::Identical } else { State::Rounded }
    }
}

impl Measured {
    pub(crate) fn nmse(&self) -> Option<f64> {
        if self.identical { Some(0.0) } else { self.metrics().nmse() }
    }

    /// Cosine of the angle between the two; that of what is the same is of no use.
    pub(crate) fn cosine(&self) -> Option<f64> {
        self.metrics().cosine()
    }

    fn metrics(&self) -> Metrics {
        Metrics::merge_all(&self.tiles.iter().map(|t| t.metrics).collect::<Vec<_>>())
    }

    pub(crate) fn allowed(&self) -> f64 {
        let energy: f64 = self.tiles.iter().map(|t| energy(&t.metrics)).sum();
        let due: f64 = self.tiles.iter().filter_map(|t| t.noise.as_ref()).map(|n| n.due).sum();
        OTHER_ORDER + if energy > 0.0 { QUANTISING_ROOM * due / energy } else { 0.0 }
    }

    /// Whether B is what a loader makes of A's blocks: the same, or some of it the same bit for bit.
    pub(crate) fn is_copy(&self) -> bool {
        self.dequantised && (self.is_partly_equal() || matches!(self.same(), Some(Same::Values | Same::Rounded { .. })))
    }

    fn is_partly_equal(&self) -> bool {
        let sum = |part: fn(&Tile) -> usize| self.tiles.iter().map(part).sum::<usize>();
        sum(|t| t.equal) > sum(|t| t.metrics.len()) / COPY_SHARE
    }

    /// Whether A is quantised, and B is not.
    pub(crate) fn is_dequantised(&self) -> bool {
        self.dequantised
    }

    /// Why they are the same; `None` where they are not.
    pub(crate) fn same(&self) -> Option<Same> {
        if !self.tiles.iter().all(|t| t.is_finite) {
            return None;
        }
        let differing: Vec<&Tile> = self.tiles.iter().filter(|t| !t.metrics.is_equal()).collect();
        if self.identical || differing.is_empty() {
            return Some(Same::Values);
        }
        let noise: Option<Vec<&Noise>> = differing.iter().map(|t| t.noise.as_ref()).collect();
        let follows = differing.iter().fold(follows::ALL, |all, tile| all & tile.follows);
        if follows & !follows::BACK != 0 {
            return Some(Same::Rounded { cut: follows == follows::CUT });
        }
        if follows != 0 {
            // Any values between two steps are rounded to the same one: a factor on all of them shows in their mean alone.
            return noise
                .filter(|n| self.is_finer(n, follows) && self.is_even(n, 0.0, MEAN_BIAS * unit(follows)))
                .map(|_| Same::Rounded { cut: false });
        }
        let copied = self.dequantised && self.is_partly_equal();
        noise.filter(|n| !copied && self.is_noise(n)).map(|_| Same::Noise)
    }

    /// Whether B may be the finer original that A's 16-bit numbers were rounded from: what lies between is of either sign in every row, and of the whole
    /// tensor as large as what rounding leaves. What is A's bit for bit but for some numbers was changed there.
    fn is_finer(&self, noises: &[&Noise], follows: u8) -> bool {
        let sum = |part: &dyn Fn(&Noise) -> f64| noises.iter().map(|n| part(n)).sum::<f64>();
        let due = sum(&|n| n.rounding[usize::from(follows & follows::TO_BF16 != 0)]);
        let count: usize = self.tiles.iter().map(|tile| tile.metrics.len()).sum();
        let least = LITTLE_OF_DUE.min(1.0 - SIGMAS_OF_A_ROW / (count as f64).sqrt());
        noises.iter().all(|n| n.few_sizes) || noises.iter().all(|n| !n.leans) && sum(&|n| n.error) >= least * due
    }

    /// Whether no more is off than quantising costs: in all, in any row or column, and without a pattern.
    fn is_noise(&self, noises: &[&Noise]) -> bool {
        let mut columns = vec![(0.0, 0.0); noises.first().map_or(0, |n| n.columns.len())];
        for noise in noises {
            columns.iter_mut().zip(&noise.columns).for_each(|(to, from)| *to = (to.0 + from.0, to.1 + from.1));
        }
        let sum = |part: fn(&Noise) -> f64| noises.iter().map(|n| part(n)).sum::<f64>();
        noises.iter().all(|n| n.error <= QUANTISING_ROOM * n.due && n.worst_row <= ROW_QUANTISING_ROOM)
            && columns.iter().all(|(e, d)| *e <= ROW_QUANTISING_ROOM * d)
            && !(self.dequantised && sum(|n| n.lined) > LINED * sum(|n| n.error))
            && (self.both || self.is_even(noises, if self.quantised { LITTLE_OF_DUE } else { 0.0 }, 0.0))
    }

    /// Whether the slope of one side against the other is 1, but for chance and some part of what is lost. An error of less than `little` of
    /// what is due says nothing: where values lie on the levels, what is lost has a pattern. A slope of `least` says nothing either.
    fn is_even(&self, noises: &[&Noise], little: f64, least: f64) -> bool {
        let sum = |part: fn(&Noise) -> f64| noises.iter().map(|n| part(n)).sum::<f64>();
        let (error, due, xx) = (sum(|n| n.error), sum(|n| n.due), sum(|n| n.xx));
        let slope = (sum(|n| n.xy) / xx - 1.0).abs();
        if xx == 0.0 || error < little * due || noises.iter().all(|n| n.few_sizes) {
            return xx == 0.0 || slope <= SLOPE_OF_FEW_LEVELS;
        }
        slope <= (CHANCE_SIGMAS * sum(|n| n.spread).sqrt() / xx).max(least) + 2.0 * error / xx
    }
}

fn energy(metrics: &Metrics) -> f64 {
    metrics.reference_rms().map_or(0.0, |rms| rms * rms * metrics.compared() as f64)
}

/// Measures two tensors of one shape.
pub(crate) fn measure(left: &Tensor<'_>, right: &Tensor<'_>, options: Options) -> Measured {
    let few = |t: &Tensor<'_>| t.storage().is_some_and(Storage::is_quantised);
    let (a, b) = (few(left), few(right));
    // A file may be what A was made of; what an engine wrote is what it made of A.
    let dequantised = a && !b && right.is_dumped();
    let of = |tiles, identical| Measured { tiles, identical, dequantised, both: a && b, quantised: a || b };
    if !options.sample && left.same_bytes(right) {
        return of(Vec::new(), true);
    }
    let tiles = left.tiles(right);
    let count = tiles.len();
    let chosen = tiles.into_par_iter().enumerate().filter(|(i, _)| !options.sample || i % 16 == 0 || i + 1 == count);
    let width = left.row_len().max(1);
    let storages = [left.storage(), right.storage()];
    of(chosen.map(|(_, range)| tile(&left.read(range.clone()), &right.read(range), storages, width)).collect(), false)
}

fn tile(a: &[f32], b: &[f32], storages: [Option<Storage>; 2], width: usize) -> Tile {
    let metrics = Metrics::measure_f32(a, b);
    let is_finite = metrics.is_finite() && a.iter().all(|x| x.is_finite());
    if metrics.is_equal() {
        return Tile { equal: metrics.len(), metrics, is_finite, follows: follows::ALL, noise: None };
    }
    let mut found = rounded(a, b);
    if metrics.nmse().is_some_and(|nmse| nmse <= OTHER_ORDER) && arithmetic(a, b) {
        found |= follows::ARITHMETIC;
    }
    let equal = a.iter().zip(b).filter(|(x, y)| x == y && **x != 0.0).count();
    // Two types that both lose something; or one, and not by what its rounding gives.
    let lossy = storages.iter().flatten().any(|s| s.is_quantised())
        || matches!(storages, [Some(Storage::F16), Some(Storage::BF16)] | [Some(Storage::BF16), Some(Storage::F16)]);
    let noise = (found & !follows::BACK == 0 && (lossy || found != 0)).then(|| {
        let noise = noise_of(a, b, storages, width);
        // Looked at only where A may be B, rounded.
        if found == 0 { noise } else { noise.of_a_rounding(a, b, width) }
    });
    Tile { metrics, is_finite, follows: found, equal, noise }
}

impl Noise {
    /// The same, with what tells whether A is B rounded to 16 bits. Of rows too short to tell, as those of a vector are, several are taken together.
    fn of_a_rounding(self, a: &[f32], b: &[f32], width: usize) -> Noise {
        let row = width.max(LEAST_ROW);
        let rounding = [Storage::F16, Storage::BF16].map(|half| rounding_of(b, half));
        Noise { rounding, leans: a.chunks(row).zip(b.chunks(row)).any(|(a, b)| leans(a, b)), ..self }
    }
}

/// Σ of the variances that storing values in a 16-bit type leaves.
pub(super) fn rounding_of(values: &[f32], half: Storage) -> f64 {
    let mut due = vec![0.0; values.len()];
    noise::variance(values, Some(half), &mut due);
    due.into_iter().map(f64::from).sum()
}

/// Whether B's values lie on one side of A's, in size, oftener than chance has it. A value that stands in a row several times is rounded once.
fn leans(a: &[f32], b: &[f32]) -> bool {
    let are_uneven = |pairs: &[(f32, f32)]| {
        let larger = pairs.iter().filter(|(x, y)| y > x).count() as f64;
        let smaller = pairs.iter().filter(|(x, y)| y < x).count() as f64;
        (larger - smaller).abs() > SIGMAS_OF_A_ROW * (larger + smaller).sqrt()
    };
    let mut pairs: Vec<(f32, f32)> = a.iter().zip(b).map(|(x, y)| (x.abs(), y.abs())).collect();
    are_uneven(&pairs) && {
        pairs.sort_unstable_by_key(|(_, y)| y.to_bits());
        pairs.dedup_by_key(|(_, y)| *y);
        are_uneven(&pairs)
    }
}

/// Whether every value is as near as a product and a sum of the size of its neighbours come.
fn arithmetic(a: &[f32], b: &[f32]) -> bool {
    const NEIGHBOURS: usize = 32;
    const ULPS: f32 = 8.0 * f32::EPSILON;
    a.chunks(NEIGHBOURS).zip(b.chunks(NEIGHBOURS)).all(|(a, b)| {
        let top = a.iter().fold(0f32, |top, x| top.max(x.abs()));
        a.iter().zip(b).all(|(x, y)| (x - y).abs() <= ULPS * top)
    })
}

/// Which of the two is the other rounded, and to what.
fn rounded(a: &[f32], b: &[f32]) -> u8 {
    let cut = |x: &f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let ways = [
        (follows::F16, is_rounded(a, b, Half::F16)),
        (follows::BF16, is_rounded(a, b, Half::BF16)),
        (follows::TO_F16, is_rounded(b, a, Half::F16)),
        (follows::TO_BF16, is_rounded(b, a, Half::BF16)),
        (follows::CUT, a.iter().map(cut).eq(b.iter().copied())),
    ];
    ways.iter().filter(|(_, holds)| *holds).fold(0, |all, (way, _)| all | way)
}

/// Whether `to` is `from` rounded. A block at a time, so that the processor's own conversion is used.
pub(super) fn is_rounded(from: &[f32], to: &[f32], half: Half) -> bool {
    const BLOCK: usize = 1024;
    let mut wide = [0f32; BLOCK];
    from.chunks(BLOCK).zip(to.chunks(BLOCK)).all(|(from, to)| {
        let wide = &mut wide[..from.len()];
        wide.copy_from_slice(from);
        half.round_all(wide);
        wide == to
    })
}

fn noise_of(a: &[f32], b: &[f32], storages: [Option<Storage>; 2], width: usize) -> Noise {
    let due = noise::between([a, b], storages);
    // x is the coarser side: against it, the error of the other has no slope.
    let few = |s: Option<Storage>| s.is_some_and(Storage::is_quantised);
    let b_is_coarse =
        few(storages[1]) || !few(storages[0]) && matches!(storages[1], Some(Storage::F16 | Storage::BF16));
    let (x, y) = if b_is_coarse { (b, a) } else { (a, b) };
    let coarse = storages[usize::from(b_is_coarse)];
    let group = match coarse {
        Some(Storage::Block(kind)) => kind.scales().map_or(32, |s| s.group),
        Some(Storage::Groups(group)) => group,
        Some(Storage::Packed(packing)) => packing.group,
        _ => 32,
    }
    .max(16);
    let clipped = noise::clipping(y, coarse);
    let error: Vec<f32> = (0..x.len())
        .map(|i| {
            let plain = x[i] - y[i];
            let relieved = plain - clipped.as_ref().map_or(0.0, |c| c[i]);
            if relieved.abs() < plain.abs() { relieved } else { plain }
        })
        .collect();
    let mut out = Noise {
        error: 0.0,
        due: 0.0,
        worst_row: 0.0,
        columns: vec![(0.0, 0.0); if x.len() >= 32 * width { width } else { 0 }],
        xx: 0.0,
        xy: 0.0,
        spread: x.iter().zip(&due).map(|(x, due)| f64::from(x * x) * f64::from(*due)).sum(),
        lined: 0.0,
        few_sizes: different(y.iter().take(256).map(|y| y.abs())) <= FEW_SIZES
            || y.chunks(32).take(16).all(|y| different(y.iter().copied()) <= GRID_VALUES)
            || x.chunks(group).take(16).all(|x| different(x.iter().copied()) <= FEW_LEVELS),
        rounding: [0.0; 2],
        leans: false,
    };
    // A row too small for the tensor's noise to be seen in it is not judged by its own.
    let least = FAINT_ROW * due.iter().map(|d| f64::from(*d)).sum::<f64>() / (due.len() / width).max(1) as f64;
    for (errors, dues) in error.chunks(width).zip(due.chunks(width)) {
        let (mut e, mut d) = (0.0, 0.0);
        for (i, (error, due)) in errors.iter().zip(dues).enumerate() {
            let (square, due) = (f64::from(error * error), f64::from(*due));
            (e, d) = (e + square, d + due);
            if let Some(column) = out.columns.get_mut(i) {
                *column = (column.0 + square, column.1 + due);
            }
        }
        (out.error, out.due) = (out.error + e, out.due + d);
        // A row of few elements says nothing by itself.
        if errors.len() >= 32 && e > 0.0 {
            let due = d.max(least);
            out.worst_row = out.worst_row.max(if due > 0.0 { e / due } else { f64::INFINITY });
        }
    }
    for (x, e) in x.chunks(group).zip(error.chunks(group)) {
        let (xx, xe, lined) = line(x, e);
        out.xx += xx;
        out.xy += xx - xe;
        out.lined += lined;
    }
    out
}

/// How many different values there are.
fn different(values: impl Iterator<Item = f32>) -> usize {
    let mut bits: Vec<u32> = values.map(f32::to_bits).collect();
    bits.sort_unstable();
    bits.dedup();
    bits.len()
}

/// Σ x², Σ x·e, and what of Σ e² a line in x takes away.
fn line(x: &[f32], e: &[f32]) -> (f64, f64, f64) {
    let (n, mut sx, mut se, mut xx, mut xe) = (x.len() as f64, 0.0, 0.0, 0.0, 0.0);
    for (x, e) in x.iter().zip(e) {
        let (x, e) = (f64::from(*x), f64::from(*e));
        (sx, se, xx, xe) = (sx + x, se + e, xx + x * x, xe + x * e);
    }
    let (within_xx, within_xe) = (xx - sx * sx / n, xe - sx * se / n);
    let sloped = if within_xx > SPREAD_FOR_SLOPE * xx { within_xe * within_xe / within_xx } else { 0.0 };
    (xx, xe, se * se / n + sloped)
}
