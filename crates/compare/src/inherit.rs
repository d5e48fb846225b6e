//! How much of a tap's error did its operation only pass on? What is read with an error is written with one.
//!
//! Rounding grows through a model at the model's own pace: some spread it hardly at all over 28 layers, in others (sharp attention, a few
//! channels of great size) right runs in f32 are 1e-8 apart after 12. No table knows that pace, but the taps that an operation reads show it.
//! The bounds here are from 105 pairs of right runs (PyTorch in f64, f32, f16, bf16, eager and SDPA, llama.cpp with f32 and f16 weights, and
//! our own forward; five models of 5 to 28 layers, 11 to 200 tokens): the most that was seen is given beside each, and the bound is some two
//! and a half times that. `scripts/test_rounding.py` measures them again.

use firstdiff_trace::{DumpError, Site, Tap};

use crate::first::{Found, Run};
use crate::judge::Allowance;
use crate::metrics::Metrics;
use crate::pair::{Layout, Pair, position_axis};
use crate::report::number;

/// A tap that an operation reads, judged and found to agree; of keys and values the worst of all steps.
#[derive(Clone, Debug)]
struct Read {
    tap: Tap,
    metrics: Metrics,
    /// NMSE of each position; of keys and values in all steps, one after the other.
    positions: Vec<f64>,
}

/// What an operation may have passed on.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// NMSE of what it reads, summed.
    pub read: f64,
    /// NMSE of what it writes that this explains.
    pub whole: f64,
    /// The same for each position; empty where nothing is inherited.
    pub positions: Vec<f64>,
    /// The same for each key, where keys are read themselves.
    pub keys: Vec<f64>,
}

impl Run<'_> {
    /// What differs is judged once more, against what its operation may have passed on of errors that are none of its own.
    pub(crate) fn with_inheritance(&self, found: &[Found], index: usize, here: Found) -> Result<Found, DumpError> {
        let place = self.graph.places()[index];
        let again = matches!(&here, Found::Judged(judged) if judged.judgement.is_finite_difference());
        let (before, between) = self.graph.nearest_before(index, |i| found.get(i).is_some_and(Found::is_judged));
        let drowned = between.iter().any(|&i| matches!(found.get(i), Some(Found::Drowned(_))));
        if !again || before.is_empty() || !before.iter().all(|&i| found[i].agrees()) {
            return Ok(here);
        }
        let reads = self.reads(found, &before)?;
        let judged = self.with_pair(place, &Layout::Same, |pair, own| {
            let metrics = Metrics::over(&pair.row_metrics());
            let mut inherited = inherited(pair, &metrics, &reads, between.is_empty());
            if let ([x], true, "rms_norm") = (&before[..], between.is_empty(), self.graph.op(index)) {
                let x = self.graph.places()[*x];
                let passed =
                    self.with_pair(x, found_layout(&found[before[0]]), |x, _| through_norm(x, pair))?.flatten();
                inherited.passed(passed);
            }
            Ok(self.judge(pair, &Allowance { own, inherited }))
        })?;
        Ok(match judged.transpose()?.unwrap_or(here) {
            Found::Judged(judged)
                if judged.judgement.is_drowned() || (drowned && !judged.judgement.outcome.agrees()) =>
            {
                Found::Drowned(judged.judgement.metrics.nmse().unwrap_or(f64::INFINITY))
            }
            other => other,
        })
    }

    /// The taps at `places`, of each the metrics of the step that is furthest off.
    fn reads(&self, found: &[Found], places: &[usize]) -> Result<Vec<Read>, DumpError> {
        let mut reads: Vec<Read> = Vec::new();
        for &i in places {
            let Found::Judged(judged) = &found[i] else { continue };
            let (place, metrics) = (self.graph.places()[i], judged.judgement.metrics);
            let positions = self.with_pair(place, &judged.layout, |pair, _| pair.nmse_by_position())?;
            let positions = positions.unwrap_or_default();
            match reads.iter_mut().find(|r| r.tap == place.tap) {
                None => reads.push(Read { tap: place.tap, metrics, positions }),
                Some(read) => {
                    read.positions.extend(positions);
                    if metrics.nmse() > read.metrics.nmse() {
                        read.metrics = metrics;
                    }
                }
            }
        }
        Ok(reads)
    }

    /// Says where rounding has grown beyond the profile's own: a fault as small as that cannot show there.
    pub(crate) fn amplified(&self, found: &[Found]) -> Option<String> {
        let inherited = |(i, here): (usize, &Found)| match here {
            Found::Judged(judged) if judged.judgement.is_inherited() => Some((judged.judgement.metrics.nmse()?, i)),
            _ => None,
        };
        let grown: Vec<(f64, usize)> = found.iter().enumerate().filter_map(inherited).collect();
        let (nmse, worst) = grown.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let (count, profile, place) = (grown.len(), self.options.profile, self.graph.places()[worst]);
        Some(format!(
            "{count} of the taps that agree are further off than {profile} by itself, as what they read already is (worst NMSE {} at \
             {place}): this model amplifies rounding, and a mistake as small as that cannot show there",
            number(nmse)
        ))
    }
}

impl Inherited {
    /// Takes what a norm passes on, whole and by position, for what was only estimated.
    fn passed(&mut self, passed: Option<(f64, Vec<f64>)>) {
        let Some((whole, positions)) = passed else { return };
        // What is read is as far off as it looks once the norm has weighed its channels.
        self.read = whole;
        self.whole = NORM_ROOM * whole;
        self.positions = positions.into_iter().map(|nmse| NORM_ROOM * POSITION_ROOM * nmse).collect();
    }
}

/// What a norm passes on is computed, but for how the error shares out.
const NORM_ROOM: f64 = 4.0;
/// A position's error scatters this much more than the whole's.
const POSITION_ROOM: f64 = 8.0;

/// What the operation that makes `out` may pass on of its `reads`. `direct`: nothing unchecked lies between.
fn inherited(out: &Pair<'_>, metrics: &Metrics, reads: &[Read], direct: bool) -> Inherited {
    let nmse = |read: &Read| read.metrics.nmse().unwrap_or(f64::INFINITY);
    let total: f64 = reads.iter().map(nmse).sum();
    if reads.is_empty() || !total.is_finite() {
        return Inherited::default();
    }
    let site = out.site();
    let energy = metrics.reference_rms().unwrap_or(0.0).powi(2);
    let square = |read: &Read| read.metrics.rmse().unwrap_or(f64::INFINITY).powi(2);
    let squares: f64 = reads.iter().map(square).sum();
    let (rows, _) = out.rows();
    let by_position = |growth: f64| -> Vec<f64> {
        (0..rows)
            .map(|row| growth * POSITION_ROOM * reads.iter().map(|r| at(r, site, rows, row)).sum::<f64>())
            .collect()
    };
    let (whole, positions) = match site {
        // e^x makes of an error in x one relative to 1: up to 4.1 times the mean square.
        Site::Probs | Site::RouterProbs => (10.0 * squares, vec![POSITION_ROOM * 10.0 * squares; rows]),
        // Errors add, though the sum may be smaller than its parts: (a + b)² is at most 2 (a² + b²).
        Site::H | Site::HAttn if direct && energy > 0.0 => (2.0 * squares / energy, by_position(2.0)),
        _ => {
            let growth = if direct { growth(site) } else { INDIRECT };
            (growth * total, by_position(growth))
        }
    };
    let keys = match site {
        Site::Qk | Site::Scores => by_key(reads, growth(Site::Qk) * POSITION_ROOM),
        _ => Vec::new(),
    };
    Inherited { read: total, whole, positions, keys }
}

/// What each key's own error, and the worst of the queries, may become in the products with it.
fn by_key(reads: &[Read], growth: f64) -> Vec<f64> {
    let Some(keys) = reads.iter().find(|r| attended(r.tap.site)) else { return Vec::new() };
    let others = reads.iter().filter(|r| !attended(r.tap.site));
    let worst: f64 = others.map(|r| r.positions.iter().copied().fold(0.0, f64::max)).sum();
    keys.positions.iter().map(|key| growth * (key + worst)).collect()
}

fn attended(site: Site) -> bool {
    matches!(site, Site::K | Site::KNorm | Site::KRope | Site::V)
}

/// Several operations on the way.
const INDIRECT: f64 = 100.0;

/// How many times the NMSE of what it reads an operation may write. The most that was seen stands beside it.
fn growth(site: Site) -> f64 {
    use Site::*;
    match site {
        AttnNorm | FfnNorm | FinalNorm | QNorm | KNorm | AttnPostNorm | FfnPostNorm => 100.0, // 35
        Q | K => 8.0,                                                                         // 3.2
        V | AttnOut | FfnOut => 20.0,                                                         // 7.6
        FfnGate | FfnUp | RouterLogits => 7.0,                                                // 2.7
        Logits => 3.0,                                                                        // 1.2
        QRope | KRope => 7.0,                        // 2.8, beside the angles' own
        Qk => 40.0,                                  // 15
        Scores => 4.0,                               // 1.5
        Context => 14.0,                             // 5.4
        FfnAct => 8.0,                               // 3.0
        H0 | H | HAttn | Probs | RouterProbs => 2.0, // where the squares are not known
    }
}

/// The NMSE at which a read tap enters row `row`: its own there, or its worst, where all positions are read.
fn at(read: &Read, site: Site, rows: usize, row: usize) -> f64 {
    let crosses = attended(read.tap.site) && matches!(site, Site::Qk | Site::Scores | Site::Probs | Site::Context);
    let here = read.positions.get(row).copied().filter(|_| read.positions.len() == rows && !crosses);
    here.unwrap_or_else(|| read.positions.iter().copied().fold(0.0, f64::max))
}

/// The NMSE of a norm's output, whole and by position, if it only passes on the error of `x`: channel by channel the output's
/// gain is that of the reference. A norm that shrinks a channel of great size lays bare the error of all others.
fn through_norm(x: &Pair<'_>, y: &Pair<'_>) -> Option<(f64, Vec<f64>)> {
    let (rows, row) = y.rows();
    if x.shape() != y.shape() || position_axis(y.site()) != 0 || row == 0 {
        return None;
    }
    let mut sums = vec![(0.0, 0.0, 0.0, 0.0); rows];
    for i in 0..y.len() {
        let (from, to) = (x.reference(i), y.reference(i));
        let gain = if from == 0.0 { 0.0 } else { to / from };
        let d = x.candidate(i) - from;
        let (error, energy, read, size) = &mut sums[i / row];
        *error += (gain * d).powi(2);
        *energy += to * to;
        *read += d * d;
        *size += from * from;
    }
    // The root mean square is off by no more than the error of the row.
    let off = |&(error, energy, read, size): &(f64, f64, f64, f64)| (error + energy * read / size, energy);
    let parts: Vec<(f64, f64)> = sums.iter().map(off).collect();
    let whole = parts.iter().fold((0.0, 0.0), |a, p| (a.0 + p.0, a.1 + p.1));
    let nmse = |(error, energy): (f64, f64)| if energy > 0.0 { error / energy } else { 0.0 };
    let (whole, positions) = (nmse(whole), parts.into_iter().map(nmse).collect::<Vec<f64>>());
    whole.is_finite().then_some((whole, positions))
}

/// The layout in which a place was judged.
fn found_layout(found: &Found) -> &Layout {
    match found {
        Found::Judged(judged) => &judged.layout,
        _ => &Layout::Same,
    }
}
