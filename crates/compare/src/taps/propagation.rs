//! Bounds the part of a tap's error that its operation only passed on from its inputs.
//!
//! Rounding grows at each model's own pace: some amplify it hardly at all over 28 layers; in others (sharp attention, a few large channels) right runs in f32
//! are 1e-8 apart after 12. No table knows that pace, but the inputs of an operation show it. The bounds here are from 105 pairs of right runs (PyTorch in
//! f64, f32, f16, bf16, eager and SDPA, llama.cpp with f32 and f16 weights, and our own forward; five models of 5 to 28 layers, 11 to 200 tokens), most of
//! which `scripts/suites/test_rounding.py` makes again: up to 1.5 times the largest seen an error is inherited, beyond 6 times it is the operation's own, and
//! in between it is inconclusive.

use firstdiff_trace::{Cache, DumpError, Site, Tap};

use crate::align::chunks::name_of;
use crate::judge::cached::beyond_the_profile;
use crate::judge::inherited::Inherited;
use crate::judge::judge;
use crate::judge::tensor::{
    Outcome, PairJudgement, Tolerance, balanced_nmse, mean_square, median, size, size_of, square_error,
};
use crate::layout::pair::{Pair, by_position};
use crate::layout::types::Layout;
use crate::metrics::{Metrics, Squares};
use crate::taps::choice::is_choice;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::tolerance::Profile;
use crate::tolerance::judge::{
    INHERITED_MOST, MASKED, POSITION_ROOM, RANGE_OWN, RANGE_USUAL, growth, layer_nmse, op_nmse, range_growth,
};
use crate::words::number;

/// A tap that an operation reads, which was judged and agrees; for keys and values, the worst of all steps.
#[derive(Clone, Debug)]
struct InputTap {
    tap: Tap,
    metrics: Metrics,
    /// Metrics of each position; for keys and values, of those in all steps, one after the other.
    positions: Vec<Metrics>,
}

impl InputTap {
    /// NMSE as a whole, including the balanced one; infinite where it is not finite.
    fn nmse(&self) -> f64 {
        self.metrics.nmse().map_or(f64::INFINITY, |nmse| size(nmse, balanced_nmse(&self.positions)))
    }

    /// NMSE of a position.
    fn at(&self, position: usize) -> Option<f64> {
        self.positions.get(position).map(position_error)
    }

    /// NMSE of the median position.
    fn median(&self) -> f64 {
        median(self.positions.iter().map(position_error)).unwrap_or(0.0)
    }

    /// NMSE of the position that is furthest off.
    fn worst(&self) -> f64 {
        self.positions.iter().map(position_error).fold(0.0, f64::max)
    }
}

fn position_error(metrics: &Metrics) -> f64 {
    metrics.nmse().unwrap_or(0.0)
}

impl ComparisonContext<'_> {
    /// Judges a tap again that differs, or is far from its inputs: against the errors that its operation may have passed on from them.
    pub(crate) fn with_input_error(
        &self,
        taps: &[TapJudgement],
        index: usize,
        here: TapJudgement,
    ) -> Result<TapJudgement, DumpError> {
        self.judge_with_inherited(taps, index, here, false)
    }

    /// The same for a tap whose layout is already known.
    pub(crate) fn with_input_error_as_stored(
        &self,
        taps: &[TapJudgement],
        index: usize,
        here: TapJudgement,
    ) -> Result<TapJudgement, DumpError> {
        self.judge_with_inherited(taps, index, here, true)
    }

    fn judge_with_inherited(
        &self,
        taps: &[TapJudgement],
        index: usize,
        here: TapJudgement,
        as_stored: bool,
    ) -> Result<TapJudgement, DumpError> {
        // A tap that agrees in no order of axes may do so in one, once the error that it only passed on is allowed.
        let first = match &here {
            TapJudgement::Compared(first) => Some(first),
            TapJudgement::ShapeMismatch(_) => None,
            _ => return Ok(here),
        };
        if self.options.wrong_by_model.contains_key(&self.graph.places()[index]) {
            return Ok(here);
        }
        let (before, between) =
            self.graph.nearest_before(index, |i| taps.get(i).is_some_and(TapJudgement::is_compared));
        let agree = before.iter().all(|&i| taps[i].agrees());
        if !agree || (before.is_empty() && between.is_empty()) {
            return Ok(here);
        }
        // A second right run has already passed on such errors.
        if let Some(noise) = self.noise(self.graph.places()[index]) {
            let passed_on = first.filter(|first| self.passes_on_noise(taps, &before, first, noise));
            return Ok(passed_on.map(|first| unclear(&first.judgement)).unwrap_or(here));
        }
        let (place, profile) = (self.graph.places()[index], self.options.profile);
        let direct =
            between.is_empty() && !place.tap.is_open() && !self.keys_not_compared(taps, index, &before, &between);
        let single_op = op_nmse(profile, place.tap.site).filter(|_| direct);
        let least = if direct { single_op } else { layer_nmse(profile) };
        let differs = |first: &Compared| matches!(first.judgement.outcome, Outcome::Differs(_));
        let leaps = |first: &Compared| least.is_some_and(|least| self.is_far_from_inputs(taps, &before, first, least));
        if first.is_some_and(|first| !differs(first) && !leaps(first)) {
            return Ok(here);
        }
        let reads = self.reads(taps, &before)?;
        // A difference behind an inconclusive tap is inconclusive too, unless it has structure, or is far larger than that tap would explain.
        let nmse = |&i: &usize| if let Some(TapJudgement::Inconclusive(nmse)) = taps.get(i) { *nmse } else { 0.0 };
        let unclear_before = between.iter().map(nmse).fold(0.0, f64::max);
        let moved = self.weights_by_place(place)?;
        let judged = self.with_tap_judge(place, |as_recorded, own| {
            let by_place = moved.as_ref().map(|moved| as_recorded.with_candidate(moved));
            let alignment = by_place.as_ref().unwrap_or(as_recorded);
            let in_its_layout = || alignment.under(first.map_or(&Layout::Same, |first| &first.layout));
            let pair = if as_stored { in_its_layout() } else { alignment.under(&Layout::Same).or_else(in_its_layout) };
            // In any order: inherited error depends only on the expected values.
            let Some(pair) = &pair.or_else(|| alignment.others().into_iter().next()) else { return Ok(None) };
            let mut inherited = match direct {
                true => inherited_from(pair, &reads),
                false => over_a_range(pair, own, &reads, profile),
            };
            if let ([x], true) = (&before[..], direct) {
                let (x, layout) = (self.graph.places()[*x], found_layout(&taps[*x]));
                let passed_on = |x: &Pair<'_>, _| match (x.site(), pair.site(), self.graph.op(index)) {
                    (_, _, "rms_norm") => through_norm(x, pair),
                    (Site::Qk, Site::Scores, _) => through_mask(x, pair),
                    _ => None,
                };
                inherited.replace_by_norm(self.with_pair(x, layout, passed_on)?.flatten());
            }
            inherited.add_inconclusive(unclear_before, range_growth(profile));
            let [stored, cost] = [self.stored_in_the_cache(index, &between), self.cost_of_the_cache(index, &between)];
            inherited.read_from_the_cache(stored, cost, pair.rows().0);
            let allowed = Tolerance { single_op, inherited, ..self.allowance(place, own) };
            Ok(Some(if as_stored {
                alignment.compared(pair, judge(pair, profile, &allowed), None)
            } else {
                alignment.judge(&allowed)
            }))
        })?;
        Ok(match judged.transpose()?.flatten() {
            Some(TapJudgement::Compared(judged)) if judged.judgement.outcome == Outcome::Inconclusive => {
                unclear(&judged.judgement)
            }
            Some(found) => found,
            // Known in part: only the size of its error can be judged.
            None => {
                let limit = range_growth(profile) * unclear_before;
                let explained = first.filter(|first| first.judgement.is_far_by_no_more(limit));
                explained.map(|first| unclear(&first.judgement)).unwrap_or(here)
            }
        })
    }

    /// Whether a tap that the table lets pass is far from its inputs.
    fn is_far_from_inputs(&self, taps: &[TapJudgement], before: &[usize], compared: &Compared, least: f64) -> bool {
        let nmse = |here: &Compared| here.judgement.size().unwrap_or(0.0);
        let read = before.iter().map(|&i| if let TapJudgement::Compared(read) = &taps[i] { nmse(read) } else { 0.0 });
        !before.is_empty() && nmse(compared) > least + read.fold(0.0, f64::max)
    }

    /// The taps at `places`, each with the metrics of the step that is furthest off.
    fn reads(&self, taps: &[TapJudgement], places: &[usize]) -> Result<Vec<InputTap>, DumpError> {
        let mut reads: Vec<InputTap> = Vec::new();
        for &i in places {
            // Expert numbers are not values that pass on an error.
            let TapJudgement::Compared(judged) = &taps[i] else { continue };
            if is_choice(self.graph.places()[i].tap) {
                continue;
            }
            let (place, metrics) = (self.graph.places()[i], judged.judgement.metrics);
            let positions = self.with_pair(place, &judged.layout, |pair, _| by_position(pair, pair.row_metrics()))?;
            let positions = positions.unwrap_or_default();
            match reads.iter_mut().find(|r| r.tap == place.tap) {
                None => reads.push(InputTap { tap: place.tap, metrics, positions }),
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

    /// Describes where rounding has grown beyond the profile's own: smaller faults cannot show there.
    pub(crate) fn amplified_rounding_note(&self, judgements: &[TapJudgement]) -> Option<String> {
        let inherited = |(i, here): (usize, &TapJudgement)| match here {
            TapJudgement::Compared(judged) if judged.judgement.is_inherited() => Some((judged.judgement.size()?, i)),
            _ => None,
        };
        let grown: Vec<(f64, usize)> = judgements.iter().enumerate().filter_map(inherited).collect();
        let (nmse, worst) = grown.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let (count, profile, place) = (grown.len(), self.options.profile, self.graph.places()[worst]);
        let place = name_of(self.alignment(), place);
        let cache = match beyond_the_profile(profile, self.options.cache) {
            Cache::F32 => String::new(),
            cache => format!(", as a K/V cache in {cache} allows"),
        };
        Some(format!(
            "{count} of the taps that agree are beyond {profile}'s own tolerance because their inputs already differ (worst NMSE {} at \
             {place}){cache}: smaller faults cannot be seen here",
            number(nmse)
        ))
    }
}

fn unclear(judgement: &PairJudgement) -> TapJudgement {
    TapJudgement::Inconclusive(judgement.size().unwrap_or(f64::INFINITY))
}

/// The error that the operation which makes `out` may pass on from its `reads`.
fn inherited_from(out: &Pair<'_>, reads: &[InputTap]) -> Inherited {
    let site = out.site();
    let positions = by_position(out, out.row_metrics());
    let rows = positions.len();
    // One row of several, as a classifier reads that of its class token: which one is not known.
    let is_of_some = |read: &InputTap| rows < read.positions.len() && !reads_all_positions(read.tap.site, site);
    let of_read = |read: &InputTap| if is_of_some(read) { read.nmse().max(read.worst()) } else { read.nmse() };
    let total: f64 = reads.iter().map(of_read).sum();
    if reads.is_empty() || !total.is_finite() {
        return Inherited::default();
    }
    let energy = mean_square(&Metrics::merge_all(&positions));
    let squares: f64 = reads.iter().map(|read| square_error(&read.metrics)).sum();
    // The same at each position, where an input has it.
    let squares_at = |at: usize| reads.iter().filter_map(|read| read.positions.get(at).map(square_error)).sum::<f64>();
    let room = INHERITED_MOST * POSITION_ROOM;
    let row = |row: usize| reads.iter().map(|read| at(read, site, rows, row, InputTap::worst)).sum::<f64>();
    let growth = growth(site);
    let by_position = || (0..rows).map(|at| growth * room * row(at)).collect();
    let mut inherited = match site {
        // e^x turns an error in x into one relative to 1.
        Site::Probs | Site::RouterProbs => {
            Inherited::from_largest(total, growth * squares, vec![room * growth * squares; rows])
        }
        // Errors add, though the sum may be smaller than its parts.
        Site::H | Site::HAttn if energy > 0.0 => {
            let each: Vec<_> =
                (0..rows).map(|at| Squares { error: squares_at(at), energy: mean_square(&positions[at]) }).collect();
            Inherited::from_largest(total, growth * (squares / energy).max(size_of(&each)), by_position())
        }
        _ => Inherited::from_largest(total, growth * total, by_position()),
    };
    let usual = |row: usize| reads.iter().map(|read| at(read, site, rows, row, InputTap::median)).sum::<f64>();
    inherited.expected_positions = (0..rows).map(|at| growth * room * usual(at)).collect();
    if matches!(site, Site::Qk | Site::Scores) {
        inherited.keys = error_by_key(reads, self::growth(Site::Qk) * room);
    }
    if matches!(site, Site::H | Site::HAttn) && energy > 0.0 {
        let of_read = |read: &InputTap| {
            let off = read.metrics.best_factor().map_or(0.0, |best| (best.factor - 1.0).abs());
            off * read.metrics.reference_rms().unwrap_or(0.0) / energy.sqrt()
        };
        inherited.factor = Some(reads.iter().map(of_read).sum());
    }
    inherited
}

/// What each key's own error, and that of the worst query, may become in the products with it.
fn error_by_key(reads: &[InputTap], growth: f64) -> Vec<f64> {
    let Some(keys) = reads.iter().find(|r| r.tap.site.is_attended()) else { return Vec::new() };
    let others = reads.iter().filter(|r| !r.tap.site.is_attended());
    let worst: f64 = others.map(InputTap::worst).sum();
    keys.positions.iter().map(|key| growth * (position_error(key) + worst)).collect()
}

/// The error that several unchecked operations may add and pass on from `reads`, on the way to `out`.
fn over_a_range(out: &Pair<'_>, own: f64, reads: &[InputTap], profile: Profile) -> Inherited {
    let read: f64 = reads.iter().map(InputTap::nmse).sum();
    if !read.is_finite() {
        return Inherited::default();
    }
    let worst: f64 = reads.iter().map(InputTap::worst).sum();
    let max = RANGE_OWN * own + range_growth(profile) * read;
    let positions = vec![max + range_growth(profile) * worst; out.rows().0];
    // Structure could come from any operation on the way: none stands out against what they may pass on.
    let usual = RANGE_USUAL * read;
    // A leap below the table's limit does not pass either.
    let limit = layer_nmse(profile).filter(|_| !reads.is_empty()).map(|fresh| fresh + usual);
    let expected = own + usual;
    Inherited { read: range_growth(profile) * read, expected, max, limit, positions, ..Inherited::default() }
}

/// Whether each position of `site` reads all positions of `read`.
fn reads_all_positions(read: Site, site: Site) -> bool {
    read.is_attended() && matches!(site, Site::Qk | Site::Scores | Site::Probs | Site::Context)
}

/// The NMSE with which an input enters row `row`: its own there, or that of `all` positions, where these are read.
fn at(read: &InputTap, site: Site, rows: usize, row: usize, all: fn(&InputTap) -> f64) -> f64 {
    let here = read.at(row).filter(|_| read.positions.len() == rows && !reads_all_positions(read.tap.site, site));
    here.unwrap_or_else(|| all(read))
}

/// The NMSE of a norm's output, whole and by position, if it only passes on the error of `x`: channel by channel the output has the reference's gain. A norm
/// that shrinks a large channel exposes the error of all others.
fn through_norm(x: &Pair<'_>, y: &Pair<'_>) -> Option<(f64, Vec<f64>)> {
    let (rows, row) = y.rows();
    if x.shape() != y.shape() || y.site().position_axis() != 0 || row == 0 {
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
    let off =
        |&(error, energy, read, size): &(f64, f64, f64, f64)| Squares { error: error + energy * read / size, energy };
    nmse_by_position(&sums.iter().map(off).collect::<Vec<_>>())
}

/// The NMSE of the products that a mask leaves, whole and by position: the first positions see few keys, whose products may be small beside the masked ones.
fn through_mask(products: &Pair<'_>, scores: &Pair<'_>) -> Option<(f64, Vec<f64>)> {
    let (rows, keys) = scores.rows();
    if products.shape() != scores.shape() || keys == 0 {
        return None;
    }
    let mut sums = vec![Squares::default(); rows];
    for i in (0..scores.len()).filter(|&i| scores.reference(i) > MASKED && scores.candidate(i) > MASKED) {
        sums[i / keys % rows].add(products.reference(i), products.candidate(i));
    }
    nmse_by_position(&sums)
}

/// NMSE as a whole, and of each position, from the error and the energy of each.
fn nmse_by_position(positions: &[Squares]) -> Option<(f64, Vec<f64>)> {
    let whole = size_of(positions);
    whole.is_finite().then(|| (whole, positions.iter().map(|part| part.nmse_or(0.0)).collect()))
}

/// The layout in which a place was judged.
fn found_layout(judgement: &TapJudgement) -> &Layout {
    match judgement {
        TapJudgement::Compared(judged) => &judged.layout,
        _ => &Layout::Same,
    }
}
