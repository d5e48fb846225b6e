//! Computes what can be drawn of one tap: its error by position, head and channel, a histogram of its differences, and its worst values.

use firstdiff_trace::Site;

use crate::layout::pair::Pair;
use crate::metrics::Squares;
use crate::words::unravel;

/// The most bars in a chart; with more positions or channels, neighbours share a bar.
const BARS: usize = 64;
/// Values that are shown side by side.
const WORST: usize = 5;
/// The most rows and columns of a map.
const MAP: usize = 24;

/// One tap's error, in few numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TapDetail {
    /// By token position.
    pub positions: GroupErrors,
    /// The first and the last token position of each group of `positions`.
    pub tokens: Vec<[usize; 2]>,
    /// By head, where it has heads.
    pub heads: GroupErrors,
    /// By index of the last axis: channel, or key of scores.
    pub channels: GroupErrors,
    /// The values that are furthest apart, the worst first; before all others, those that are finite on one side only.
    pub worst: Vec<ValuePair>,
    /// How large the differences are.
    pub spread: DifferenceHistogram,
    /// For probabilities, those of the head that is furthest off.
    pub maps: Option<ProbabilityMaps>,
}

/// NMSE of groups of neighbours, relative to their own energy; infinite where that is zero or a value is not finite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupErrors {
    /// How many are in each group; the last may hold fewer.
    pub each: usize,
    /// How many are in all groups together.
    pub count: usize,
    /// NMSE of each group.
    pub nmse: Vec<f64>,
}

/// A value of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ValuePair {
    /// Its index along every axis of what was compared.
    pub index: Vec<usize>,
    /// The reference's.
    pub reference: f64,
    /// The candidate's.
    pub candidate: f64,
}

/// A histogram of the sizes of differences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DifferenceHistogram {
    /// Values that are equal.
    pub equal: usize,
    /// Differences that are not finite.
    pub not_finite: usize,
    /// The power of two of the first entry of `counts`.
    pub from: i32,
    /// How many differences are from 2^e up to twice that, from `from` on.
    pub counts: Vec<usize>,
}

/// The probabilities of one head on both sides, neighbours averaged where there are many.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbabilityMaps {
    /// The head.
    pub head: usize,
    /// Rows (queries) and columns (keys) of each map.
    pub size: [usize; 2],
    /// How many queries and keys each entry stands for.
    pub each: [usize; 2],
    /// The token position of the first query of each row.
    pub tokens: Vec<usize>,
    /// The reference's, row by row.
    pub reference: Vec<f64>,
    /// The candidate's.
    pub candidate: Vec<f64>,
}

impl GroupErrors {
    fn group(sums: &[Squares]) -> GroupErrors {
        let each = sums.len().div_ceil(BARS).max(1);
        let nmse = sums.chunks(each).map(|group| group.iter().fold(Squares::default(), |a, b| a + *b).relative());
        GroupErrors { each, count: sums.len(), nmse: nmse.collect() }
    }
}

impl TapDetail {
    /// The detail of two paired tensors. Scores masked on both sides are left out.
    pub fn measure(pair: &Pair<'_>) -> TapDetail {
        if pair.is_empty() {
            return TapDetail::default();
        }
        let (positions, row) = pair.rows();
        let width = pair.shape().last().copied().unwrap_or(1).max(1);
        let heads = pair.heads().unwrap_or(0);
        let mut by_position = vec![Squares::default(); positions];
        let mut by_head = vec![Squares::default(); heads];
        let mut by_channel = vec![Squares::default(); width];
        let (mut worst, mut spread) = (LargestDifferences::default(), PowerCounts::default());
        // A run belongs to one position and one head; all runs have the same length.
        let of_head = if heads == 0 { row } else { run_of_head(pair, heads, row) };
        let run = width.min(row).min(of_head).max(1);
        let mut buffers = Default::default();
        for from in (0..pair.len()).step_by(run) {
            let (reference, candidate) = pair.span(from..(from + run).min(pair.len()), &mut buffers);
            let mut sum = Squares::default();
            let channels = &mut by_channel[from % width..];
            for (j, ((&r, &c), channel)) in reference.iter().zip(candidate).zip(channels).enumerate() {
                if pair.is_masked(r, c) {
                    continue;
                }
                let difference = if r == c { 0.0 } else { (c - r).abs() };
                spread.add(difference);
                // Equal infinities have no distance.
                if difference == 0.0 && r.is_infinite() {
                    continue;
                }
                worst.add(from + j, difference);
                sum.add(r, c);
                channel.add(r, c);
            }
            let position = &mut by_position[from / row % positions];
            *position = *position + sum;
            if heads > 0 {
                let head = &mut by_head[pair.head_of(from, heads)];
                *head = *head + sum;
            }
        }
        let index = |i: usize| {
            let mut at = unravel(i, pair.shape());
            if let Some(row) = at.get_mut(pair.site().position_axis()) {
                *row = pair.token_position(*row);
            }
            at
        };
        let value =
            |i: usize| ValuePair { index: index(i), reference: pair.reference(i), candidate: pair.candidate(i) };
        let [positions, heads, channels] = [by_position, by_head, by_channel].map(|sums| GroupErrors::group(&sums));
        let maps =
            (pair.site() == Site::Probs && pair.shape().len() == 3).then(|| ProbabilityMaps::worst_head(pair, &heads));
        let worst = worst.0.into_iter().map(|(i, _)| value(i)).collect();
        let rows = pair.rows().0;
        let ends = |first: usize| [first, (first + positions.each).min(rows) - 1].map(|row| pair.token_position(row));
        let tokens = (0..rows).step_by(positions.each).map(ends).collect();
        TapDetail { positions, tokens, heads, channels, worst, spread: spread.into(), maps }
    }

    /// The same for a tap of this shape that was compared as one row: indices along its own axes, and no channels.
    pub(crate) fn in_shape(self, pair: &Pair<'_>, shape: &[usize]) -> TapDetail {
        if !pair.site().is_open() || pair.rows().0 > 1 || pair.shape() == shape {
            return self;
        }
        let own = |values: ValuePair| ValuePair {
            index: unravel(values.index.last().copied().unwrap_or(0), shape),
            ..values
        };
        TapDetail { worst: self.worst.into_iter().map(own).collect(), channels: GroupErrors::default(), ..self }
    }
}

/// How many elements of one head are contiguous, where `row` elements are behind the position axis.
fn run_of_head(pair: &Pair<'_>, heads: usize, row: usize) -> usize {
    if pair.site().position_axis() == 1 { pair.len() / heads } else { row / heads }
}

impl ProbabilityMaps {
    fn worst_head(pair: &Pair<'_>, heads: &GroupErrors) -> ProbabilityMaps {
        let &[_, queries, keys] = pair.shape() else { unreachable!("asked of three axes") };
        let worst = (0..heads.nmse.len()).max_by(|&a, &b| heads.nmse[a].total_cmp(&heads.nmse[b]));
        // The first of the heads that share a bar.
        let head = worst.unwrap_or(0) * heads.each.max(1);
        let each = [queries.div_ceil(MAP).max(1), keys.div_ceil(MAP).max(1)];
        let size = [queries.div_ceil(each[0]), keys.div_ceil(each[1])];
        let mean = |value: &dyn Fn(usize) -> f64| {
            let entry = |at: usize| {
                let (row, column) = (at / size[1], at % size[1]);
                let rows = row * each[0]..((row + 1) * each[0]).min(queries);
                let columns = column * each[1]..((column + 1) * each[1]).min(keys);
                let count = rows.len() * columns.len();
                let at = |t: usize, s: usize| value((head * queries + t) * keys + s);
                rows.flat_map(|t| columns.clone().map(move |s| (t, s))).map(|(t, s)| at(t, s)).sum::<f64>()
                    / count as f64
            };
            (0..size[0] * size[1]).map(entry).collect()
        };
        let (reference, candidate) = (mean(&|i| pair.reference(i)), mean(&|i| pair.candidate(i)));
        let tokens = (0..queries).step_by(each[0]).map(|row| pair.token_position(row)).collect();
        ProbabilityMaps { head, size, each, tokens, reference, candidate }
    }
}

/// The largest differences so far, the largest first; of equal ones, the first seen first.
#[derive(Default)]
struct LargestDifferences(Vec<(usize, f64)>);

impl LargestDifferences {
    fn add(&mut self, index: usize, difference: f64) {
        // A value that is not finite is above all that are.
        let apart = if difference.is_nan() { f64::INFINITY } else { difference };
        let least = self.0.last().map_or(0.0, |(_, least)| *least);
        if apart == 0.0 || self.0.len() == WORST && apart <= least {
            return;
        }
        let at = self.0.partition_point(|(_, other)| *other >= apart);
        self.0.insert(at, (index, apart));
        self.0.truncate(WORST);
    }
}

/// Counts by power of two, for every exponent that an f64 has.
struct PowerCounts {
    equal: usize,
    not_finite: usize,
    counts: Vec<usize>,
}

/// The number of exponents of an f64, and the biased exponent of 1.
const EXPONENTS: usize = 2048;
const OF_ONE: i32 = 1023;

impl Default for PowerCounts {
    fn default() -> PowerCounts {
        PowerCounts { equal: 0, not_finite: 0, counts: vec![0; EXPONENTS] }
    }
}

impl PowerCounts {
    fn add(&mut self, difference: f64) {
        match difference {
            0.0 => self.equal += 1,
            _ if !difference.is_finite() => self.not_finite += 1,
            _ => self.counts[(difference.to_bits() >> 52) as usize] += 1,
        }
    }
}

impl From<PowerCounts> for DifferenceHistogram {
    fn from(powers: PowerCounts) -> DifferenceHistogram {
        let PowerCounts { equal, not_finite, counts } = powers;
        let first = counts.iter().position(|&n| n > 0);
        let last = counts.iter().rposition(|&n| n > 0);
        let (Some(first), Some(last)) = (first, last) else {
            return DifferenceHistogram { equal, not_finite, ..DifferenceHistogram::default() };
        };
        DifferenceHistogram { equal, not_finite, from: first as i32 - OF_ONE, counts: counts[first..=last].to_vec() }
    }
}
