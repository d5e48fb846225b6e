//! Judges a router's choice of experts: it is right where it takes the best of the candidate's own scores; where these agree with the reference's, another
//! choice is rounding. Where the candidate's choice was not recorded, finds the tokens that rounding may have sent elsewhere.

use std::collections::BTreeSet;

use firstdiff_trace::{Dump, DumpError, Entry, NamedRows, Rows, Tap};

use crate::graph::Place;
use crate::judge::choice::margin_of_best;
use crate::judge::tensor::{Difference, Outcome, PairJudgement};
use crate::layout::types::Layout;
use crate::metrics::Metrics;
use crate::report::reason::{OtherChoice, Reason};
use crate::run::side::Side;
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::tolerance::context::{CHOICE_ROOM, FLIPS_ROOM};
use crate::tolerance::storage_nmse;

/// The name of the tap in a layer.
pub const CHOICE: &str = "router_topk";

/// Beside it: the weights by which the outputs of the chosen experts are multiplied.
pub const WEIGHTS: &str = "router_weights";

/// The numbers of a tap, row by row, with an error of `unit` times the largest of the row.
pub(crate) struct RoundedRows {
    pub(crate) values: Vec<f64>,
    width: usize,
    unit: f64,
}

impl RoundedRows {
    pub(crate) fn read(dump: &Dump, entry: &Entry, shape: &[usize]) -> Result<Option<RoundedRows>, DumpError> {
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        Ok(RoundedRows::new((0..values.len()).map(|i| values.get(i)).collect(), entry, shape))
    }

    /// `None` where the values are not rows of that shape.
    fn new(values: Vec<f64>, entry: &Entry, shape: &[usize]) -> Option<RoundedRows> {
        let width = *shape.last().filter(|width| **width > 0)?;
        let unit = storage_nmse(entry.dtype).sqrt();
        (values.len() == shape.iter().product::<usize>()).then_some(RoundedRows { values, width, unit })
    }

    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.values.chunks_exact(self.width)
    }

    /// Whether no score that was not chosen exceeds one that was. A NaN is no score.
    fn is_best(&self, row: usize, chosen: &BTreeSet<usize>) -> bool {
        self.margin(row, chosen).is_some_and(|margin| margin >= -2.0 * self.unit)
    }

    /// Whether rounding cannot change the choice.
    fn is_clear(&self, row: usize, chosen: &BTreeSet<usize>) -> bool {
        self.margin(row, chosen).is_some_and(|margin| margin > 2.0 * self.unit)
    }

    fn margin(&self, row: usize, chosen: &BTreeSet<usize>) -> Option<f64> {
        margin_of_best(&self.values[row * self.width..(row + 1) * self.width], chosen)
    }
}

/// The scores from which a choice is made.
struct ChoiceScores {
    at: usize,
    entry: Entry,
    /// The reference's.
    grid: RoundedRows,
    /// Whether the reference takes the best of them for every token.
    are_ranked: bool,
}

/// The experts that each token is sent to.
type ChosenExperts = Vec<BTreeSet<usize>>;

/// Why the choice differs, by the scores.
enum ChoiceCause {
    Rounding,
    Fault,
    Unknown,
}

/// The first token that rounding sent elsewhere: its step, and its row in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MovedToken {
    pub(crate) step: u32,
    pub(crate) row: usize,
}

impl ComparisonContext<'_> {
    /// Judges a router's choice by the scores it was made from.
    pub(crate) fn judge_choice(
        &self,
        taps: &[TapJudgement],
        index: usize,
        here: TapJudgement,
    ) -> Result<TapJudgement, DumpError> {
        let place = self.graph.places()[index];
        let TapJudgement::Compared(judged) = &here else { return Ok(here) };
        let Some((ours, theirs)) = self.chosen(index)? else { return Ok(here) };
        let other: Vec<usize> = self.requested_rows(ours.len()).filter(|&row| ours[row] != theirs[row]).collect();
        if other.is_empty() {
            let is_same = judged.judgement.outcome == Outcome::Exact;
            return if is_same { Ok(here) } else { self.in_another_order(place, judged) };
        }
        // Tokens behind one that went elsewhere read its result.
        let first = self.flips(taps).min_by_key(|(token, _)| *token);
        let is_before = |row: &usize| first.is_none_or(|(first, _)| MovedToken { step: place.step, row: *row } < first);
        let rows: Vec<usize> = other.into_iter().filter(is_before).collect();
        let Some(&row) = rows.first() else { return Ok(behind(first.map_or(index, |(_, at)| at), self)) };
        let begin = self.start(place.step);
        let choice = match self.cause(taps, index, &rows, [&ours, &theirs])? {
            ChoiceCause::Fault => {
                let [reference, candidate] = [&ours, &theirs].map(|all| all[row].iter().copied().collect());
                let difference = Difference::Choice { position: begin + row, reference, candidate };
                return Ok(with_outcome(judged, Outcome::Differs(difference)));
            }
            ChoiceCause::Rounding => OtherChoice::ByRounding,
            ChoiceCause::Unknown => OtherChoice::Unclear,
        };
        let tokens = rows.iter().map(|row| begin + row).collect();
        Ok(TapJudgement::Unchecked(Reason::OtherExperts { tokens, choice }))
    }

    /// Choices that the candidate did not record and that depend on rounding, each with the judgement it gets where later taps do not agree.
    pub(crate) fn undecided(&self, taps: &[TapJudgement]) -> Result<Vec<(usize, TapJudgement)>, DumpError> {
        let mut undecided = Vec::new();
        for (index, &place) in self.graph.places().iter().enumerate() {
            let is_recorded = !matches!(taps[index], TapJudgement::Unchecked(Reason::NotIn(Side::Candidate)));
            if is_recorded || !is_choice(place.tap) {
                continue;
            }
            let Some(entry) = self.reference.entry(place.tap, place.step) else { continue };
            let Some(ours) = chosen(self.reference, &entry)? else { continue };
            let Some(scores) = self.scores(index, &ours)? else { continue };
            // Another choice follows from scores that are computed from wrong taps.
            let (before, _) = self.graph.nearest_before(scores.at, |i| taps[i].is_compared());
            if before.iter().any(|&i| !taps[i].agrees()) {
                continue;
            }
            let requested = self.requested_rows(ours.len());
            let rows: Vec<usize> = match scores.are_ranked {
                true => {
                    let grid = self.with_noise(taps, scores, 1.0);
                    requested.filter(|&row| !grid.is_clear(row, &ours[row])).collect()
                }
                // The choice depends on more than these scores: which tokens may go elsewhere is unknown.
                false if self.flips_by_rounding(&scores) * ours.len() as f64 >= 1.0 => requested.collect(),
                false => Vec::new(),
            };
            let tokens: Vec<usize> = rows.iter().map(|row| self.start(place.step) + row).collect();
            if !tokens.is_empty() {
                let choice = OtherChoice::NotRecorded;
                undecided.push((index, TapJudgement::Unchecked(Reason::OtherExperts { tokens, choice })));
            }
        }
        Ok(undecided)
    }

    /// The rows to compare, of `count`.
    fn requested_rows(&self, count: usize) -> impl Iterator<Item = usize> {
        let is_asked = move |row: &usize| match &self.options.rows {
            Some(Rows::List(rows)) => rows.contains(row),
            Some(Rows::Named(NamedRows::Last)) => row + 1 == count,
            Some(Rows::Named(NamedRows::All)) | None => true,
        };
        (0..count).filter(is_asked)
    }

    /// The same choice in another order, which is no difference.
    fn in_another_order(&self, place: Place, compared: &Compared) -> Result<TapJudgement, DumpError> {
        let held = self.reference.entry(place.tap, place.step);
        let values =
            held.map(|entry| self.reference.read(&entry).map(|tensor| tensor.values().to_f64())).transpose()?;
        let values = values.unwrap_or_default();
        let metrics = Metrics::measure_f64(&values, &values);
        let judgement =
            PairJudgement { outcome: Outcome::Rounding, metrics, balanced: None, ..compared.judgement.clone() };
        Ok(TapJudgement::from(Compared { judgement, ..compared.clone() }))
    }

    /// The first tokens of each place that were sent elsewhere, with no operation to blame.
    pub(crate) fn flips(&self, taps: &[TapJudgement]) -> impl Iterator<Item = (MovedToken, usize)> {
        taps.iter().enumerate().filter_map(|(at, here)| match here {
            TapJudgement::Unchecked(Reason::OtherExperts { tokens, .. }) => {
                let step = self.graph.places()[at].step;
                Some((MovedToken { step, row: tokens.first()? - self.start(step) }, at))
            }
            _ => None,
        })
    }

    /// The experts that both sides choose, token by token; `None` where the two cannot be paired.
    fn chosen(&self, index: usize) -> Result<Option<(ChosenExperts, ChosenExperts)>, DumpError> {
        let place = self.graph.places()[index];
        let (Some(left), Some(right)) =
            (self.reference.entry(place.tap, place.step), self.candidate.entry(place.tap, place.step))
        else {
            return Ok(None);
        };
        if left.shape != right.shape {
            return Ok(None);
        }
        Ok(chosen(self.reference, &left)?.zip(chosen(self.candidate, &right)?))
    }

    /// Why the candidate chooses differently in these rows.
    fn cause(
        &self,
        taps: &[TapJudgement],
        index: usize,
        rows: &[usize],
        [ours, theirs]: [&ChosenExperts; 2],
    ) -> Result<ChoiceCause, DumpError> {
        // No token goes to one expert twice.
        if rows.iter().any(|&row| theirs[row].len() != ours[row].len()) {
            return Ok(ChoiceCause::Fault);
        }
        let Some(scores) = self.scores(index, ours)? else { return Ok(ChoiceCause::Unknown) };
        let fault_unless = |may_be, cause| if may_be { cause } else { ChoiceCause::Fault };
        if !scores.are_ranked {
            // Other inputs of the choice were not recorded: compare the number of tokens that go elsewhere with what rounding causes.
            let most = self.flips_by_rounding(&scores) * ours.len() as f64;
            return Ok(fault_unless(rows.len() as f64 <= most, ChoiceCause::Unknown));
        }
        let here = &taps[scores.at];
        if here.is_unclear() {
            return Ok(ChoiceCause::Unknown);
        }
        if let TapJudgement::Compared(compared) = here
            && let Some(candidate) = self.candidate_grid(&scores, &compared.layout)?
        {
            let is_best = |&row: &usize| candidate.is_best(row, &theirs[row]);
            let explains = compared.judgement.outcome.agrees() && rows.iter().all(is_best);
            return Ok(fault_unless(explains, ChoiceCause::Rounding));
        }
        let grid = self.with_noise(taps, scores, CHOICE_ROOM);
        Ok(fault_unless(rows.iter().all(|&row| grid.is_best(row, &theirs[row])), ChoiceCause::Unknown))
    }

    /// The reference's scores in place of the candidate's, which were not recorded: with an error of `room` times their tolerance, or with that of what they
    /// were computed from.
    fn with_noise(&self, taps: &[TapJudgement], scores: ChoiceScores, room: f64) -> RoundedRows {
        let (before, _) = self.graph.nearest_before(scores.at, |i| taps[i].is_compared());
        let off = |&i: &usize| if let TapJudgement::Compared(read) = &taps[i] { read.judgement.size() } else { None };
        let noise = before.iter().filter_map(off).fold(self.allowed_of(&scores), f64::max).sqrt();
        RoundedRows { unit: room * noise, ..scores.grid }
    }

    /// The share of tokens that rounding sends to other experts.
    fn flips_by_rounding(&self, scores: &ChoiceScores) -> f64 {
        FLIPS_ROOM * scores.grid.width as f64 * self.allowed_of(scores).sqrt()
    }

    fn allowed_of(&self, scores: &ChoiceScores) -> f64 {
        self.allowed(self.graph.places()[scores.at], &scores.entry, &scores.entry)
    }

    /// The scores of the reference's choice: the nearest earlier tap with this many rows of which it takes the best, else the nearest.
    fn scores(&self, index: usize, chosen: &ChosenExperts) -> Result<Option<ChoiceScores>, DumpError> {
        let place = |index: usize| self.graph.places()[index];
        let held = |place: Place| self.reference.entry(place.tap, place.step);
        let (read, _) = self.graph.nearest_before(index, |i| held(place(i)).is_some());
        let mut nearest = None;
        for &at in read.iter().rev() {
            let Some(entry) = held(place(at)) else { continue };
            let Some(grid) = RoundedRows::read(self.reference, &entry, &entry.shape)? else { continue };
            let fits = grid.rows().len() == chosen.len()
                && chosen.first().is_some_and(|of_a_token| of_a_token.len() < grid.width);
            if !fits {
                continue;
            }
            let are_ranked = (0..chosen.len()).all(|row| grid.is_best(row, &chosen[row]));
            let scores = ChoiceScores { at, entry, grid, are_ranked };
            if are_ranked {
                return Ok(Some(scores));
            }
            nearest = nearest.or(Some(scores));
        }
        Ok(nearest)
    }

    /// The candidate's scores, in the reference's order.
    fn candidate_grid(&self, scores: &ChoiceScores, layout: &Layout) -> Result<Option<RoundedRows>, DumpError> {
        let place = self.graph.places()[scores.at];
        let values =
            self.with_pair(place, layout, |pair, _| (0..pair.len()).map(|i| pair.candidate(i)).collect::<Vec<_>>())?;
        let stored = self.candidate.entry(place.tap, place.step);
        Ok(values
            .and_then(|values| RoundedRows::new(values, stored.as_ref().unwrap_or(&scores.entry), &scores.entry.shape)))
    }
}

/// Whether a tap holds the experts that a router chose.
pub(crate) fn is_choice(tap: Tap) -> bool {
    tap.is_open() && tap.layer.is_some() && tap.last_name() == CHOICE
}

/// The experts that a run sends each token to; `None` where the values are no expert numbers.
fn chosen(dump: &Dump, entry: &Entry) -> Result<Option<ChosenExperts>, DumpError> {
    let is_expert = |value: f64| value >= 0.0 && value.fract() == 0.0;
    let grid = RoundedRows::read(dump, entry, &entry.shape)?.filter(|grid| grid.values.iter().copied().all(is_expert));
    let set = |row: &[f64]| row.iter().map(|&expert| expert as usize).collect();
    Ok(grid.map(|grid| grid.rows().map(set).collect()))
}

fn with_outcome(compared: &Compared, outcome: Outcome) -> TapJudgement {
    TapJudgement::from(Compared {
        judgement: PairJudgement { outcome, ..compared.judgement.clone() },
        ..compared.clone()
    })
}

pub(crate) fn behind(at: usize, context: &ComparisonContext<'_>) -> TapJudgement {
    TapJudgement::Unchecked(Reason::BehindOtherExperts(context.graph.places()[at]))
}
