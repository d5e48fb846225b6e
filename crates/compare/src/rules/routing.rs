//! Does a router send tokens to other experts, and is that a fault? Its choice is right where it takes the best of the candidate's own scores; where these
//! agree with the reference's, another choice is rounding. What follows for such a token was computed by other experts: nobody can compare it.

use std::collections::BTreeSet;

use firstdiff_trace::{Dump, DumpError, Entry, Rows, Site, Tap};

use crate::align::chunks::name_of;
use crate::graph::Place;
use crate::judge::tensor::{Difference, Judgement, Outcome};
use crate::layout::types::Layout;
use crate::plan::AlignmentPlan;
use crate::report::reason::Reason;
use crate::rules::draft::Draft;
use crate::rules::{Ruled, attribute};
use crate::taps::context::{Compared, Judged, Options, Run};
use crate::taps::judge_taps;
use crate::tolerance::context::{CHOICE_ROOM, FLIPS_ROOM};
use crate::tolerance::storage_nmse;

/// The name of the tap in a layer.
const CHOICE: &str = "router_topk";

/// The numbers of a tap, row by row, each off by `unit` of the largest of its row.
struct Grid {
    values: Vec<f64>,
    width: usize,
    unit: f64,
}

impl Grid {
    fn of(dump: &Dump, entry: &Entry, shape: &[usize]) -> Result<Option<Grid>, DumpError> {
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        Ok(Grid::new((0..values.len()).map(|i| values.get(i)).collect(), entry, shape))
    }

    /// Nothing where the values are no rows of that shape.
    fn new(values: Vec<f64>, entry: &Entry, shape: &[usize]) -> Option<Grid> {
        let width = *shape.last().filter(|width| **width > 0)?;
        let unit = storage_nmse(entry.dtype).sqrt();
        (values.len() == shape.iter().product::<usize>()).then_some(Grid { values, width, unit })
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.values.chunks_exact(self.width)
    }

    /// Whether none that was not chosen is larger than one that was. NaN is no score.
    fn is_best(&self, row: usize, chosen: &BTreeSet<usize>) -> bool {
        let scores = &self.values[row * self.width..(row + 1) * self.width];
        if scores.iter().any(|score| score.is_nan()) || chosen.iter().any(|&expert| expert >= scores.len()) {
            return false;
        }
        let size = |most: f64, score: &f64| if score.is_finite() { most.max(score.abs()) } else { most };
        let room = 2.0 * self.unit * scores.iter().fold(0.0, size);
        let worst = chosen.iter().map(|&expert| scores[expert]).fold(f64::INFINITY, f64::min);
        let others = (0..scores.len()).filter(|expert| !chosen.contains(expert)).map(|expert| scores[expert]);
        others.fold(f64::NEG_INFINITY, f64::max) <= worst + room
    }
}

/// What a choice is made of.
struct Scores {
    at: usize,
    entry: Entry,
    /// The reference's.
    grid: Grid,
    /// Whether the reference takes the best of them for every token.
    are_ranked: bool,
}

/// The experts that each token is sent to.
type Chosen = Vec<BTreeSet<usize>>;

/// What the scores say of another choice.
enum Cause {
    Rounding,
    Fault,
    Unknown,
}

/// The first token that rounding sent elsewhere, and where.
#[derive(Clone, Copy)]
struct Flip {
    at: usize,
    token: usize,
}

impl Run<'_> {
    /// Judges every router's choice by the scores it was made of, and what lies behind a choice that rounding made otherwise at the tokens before it alone.
    pub(crate) fn judge_routing(&self, taps: &[Judged]) -> Ruled {
        let mut draft = Draft::of(taps);
        let mut first: Option<Flip> = None;
        let mut flipped = Vec::new();
        for index in (0..taps.len()).filter(|&index| is_choice(self.graph.places()[index].tap)) {
            let place = self.graph.places()[index];
            // Numbers of experts are not off by a little: what is unclear as a size is judged by itself.
            let judged = match &taps[index] {
                Judged::Inconclusive(_) => self.judge(place, self.aligned(place))?,
                judged => judged.clone(),
            };
            let (Judged::Compared(judged), Some((ours, theirs))) = (&judged, self.chosen(index)?) else { continue };
            let begin = self.start(place.step);
            let known = |row: &usize| first.is_none_or(|flip| begin + row < flip.token);
            let other: Vec<usize> = (0..ours.len()).filter(|&row| ours[row] != theirs[row]).collect();
            let before: Vec<usize> = other.iter().copied().filter(known).collect();
            let (now, flip) = match (&other[..], &before[..]) {
                ([], _) if judged.judgement.outcome == Outcome::Exact => continue,
                ([], _) => (with_outcome(judged, Outcome::Rounding), None),
                (_, []) => (behind(first.map(|flip| self.graph.places()[flip.at])), None),
                (_, &[row, ..]) => match self.cause(taps, index, &before, [&ours, &theirs])? {
                    Cause::Fault => {
                        let position = begin + row;
                        let [reference, candidate] = [&ours, &theirs].map(|all| all[row].iter().copied().collect());
                        let difference = Difference::Choice { position, reference, candidate };
                        (with_outcome(judged, Outcome::Differs(difference)), None)
                    }
                    cause => {
                        let tokens = before.iter().map(|row| begin + row).collect();
                        let by_rounding = matches!(cause, Cause::Rounding);
                        let judged = Judged::Unchecked(Reason::OtherExperts { tokens, by_rounding });
                        (judged, Some(Flip { at: index, token: begin + row }))
                    }
                },
            };
            draft.set(index, now);
            if let Some(flip) = flip {
                flipped.push(index);
                first = Some(first.filter(|first| first.token <= flip.token).unwrap_or(flip));
            }
        }
        if let Some(first) = first {
            self.judge_behind(&mut draft, &flipped, first)?;
        }
        Ok(draft.into_changes())
    }

    /// What lies behind choices that were made otherwise, and does not agree: judged again at the tokens before the first of them, or not at all.
    fn judge_behind(&self, draft: &mut Draft, flipped: &[usize], first: Flip) -> Result<(), DumpError> {
        let place = |index: usize| self.graph.places()[index];
        let (at, stack) = (place(first.at), place(first.at).tap.stack());
        let reached: BTreeSet<usize> =
            flipped.iter().flat_map(|&index| self.graph.nearest_after(index, |_| false).1).collect();
        let is_reached =
            |index: &usize| reached.contains(index) || *index > flipped[0] && !self.graph.knows_inputs(*index);
        let open = |here: &Judged| !here.agrees() && !matches!(here, Judged::NotRecorded | Judged::Unchecked(_));
        let behind_it: Vec<usize> = (0..draft.len()).filter(is_reached).filter(|&index| open(&draft[index])).collect();
        let earlier = if first.token > 0 { Some(self.at_tokens_before(first.token)?) } else { None };
        let is_causal = self.is_causal(stack)?;
        for index in behind_it {
            let again = earlier.as_ref().map(|taps| &taps[index]);
            let again = again.filter(|here| here.is_compared() && place(index).tap.stack() == stack);
            let again = again.filter(|here| here.agrees() || is_causal);
            draft.set(index, again.cloned().unwrap_or_else(|| behind(Some(at))));
        }
        Ok(())
    }

    /// Every tap at the tokens before one.
    fn at_tokens_before(&self, token: usize) -> Result<Vec<Judged>, DumpError> {
        let rows = match &self.options.rows {
            Some(Rows::List(list)) => list.iter().copied().filter(|&row| row < token).collect(),
            _ => (0..token).collect(),
        };
        let options = Options { rows: Some(Rows::List(rows)), ..self.options.clone() };
        let Run { reference, candidate, graph, .. } = *self;
        let plan = AlignmentPlan::of(reference, candidate, graph, options.rows.as_ref(), options.alignment.as_ref());
        let run = Run { reference, candidate, graph, options: &options, plan };
        Ok(attribute(&run, judge_taps(&run, &mut |_, _| ())?)?.taps)
    }

    /// Whether in a stack no token reads a later one: it decodes, or gives later keys no probability.
    fn is_causal(&self, stack: &str) -> Result<bool, DumpError> {
        let here = |place: &&Place| place.tap.stack() == stack;
        if self.graph.places().iter().filter(here).any(|place| place.step > 0) {
            return Ok(true);
        }
        let probs = self.graph.places().iter().filter(here).filter(|place| place.tap.role() == Site::Probs);
        for place in probs {
            let Some(entry) = held(self.reference, *place) else { continue };
            if let [_, queries, keys] = entry.shape[..]
                && queries == keys
                && queries > 1
            {
                let tensor = self.reference.read(&entry)?;
                let values = tensor.values();
                let is_later = |i: &usize| i % keys > i / keys % queries;
                return Ok((0..values.len()).filter(is_later).all(|i| values.get(i) == 0.0));
            }
        }
        Ok(false)
    }

    /// The experts that both sides choose, token by token; nothing where the two cannot be laid together.
    fn chosen(&self, index: usize) -> Result<Option<(Chosen, Chosen)>, DumpError> {
        let place = self.graph.places()[index];
        let (Some(left), Some(right)) = (held(self.reference, place), held(self.candidate, place)) else {
            return Ok(None);
        };
        if left.shape != right.shape {
            return Ok(None);
        }
        let is_expert = |value: f64| value >= 0.0 && value.fract() == 0.0;
        let of = |dump, entry: &Entry| {
            let grid = Grid::of(dump, entry, &entry.shape)?.filter(|grid| grid.values.iter().copied().all(is_expert));
            let set = |row: &[f64]| row.iter().map(|&expert| expert as usize).collect();
            Ok::<_, DumpError>(grid.map(|grid| grid.rows().map(set).collect::<Chosen>()))
        };
        Ok(of(self.reference, &left)?.zip(of(self.candidate, &right)?))
    }

    /// Why the candidate chooses otherwise in these rows.
    fn cause(
        &self,
        taps: &[Judged],
        index: usize,
        rows: &[usize],
        [ours, theirs]: [&Chosen; 2],
    ) -> Result<Cause, DumpError> {
        let Some(scores) = self.scores(index, ours)? else { return Ok(Cause::Unknown) };
        let allowed = self.allowed(self.graph.places()[scores.at], &scores.entry, &scores.entry);
        let fault_unless = |may_be, cause| if may_be { cause } else { Cause::Fault };
        if !scores.are_ranked {
            // What else the choice is made of was not recorded: do as many tokens go elsewhere as rounding sends there?
            let share = FLIPS_ROOM * scores.grid.width as f64 * allowed.sqrt();
            return Ok(fault_unless(rows.len() as f64 <= share * ours.len() as f64, Cause::Unknown));
        }
        let here = &taps[scores.at];
        if here.is_unclear() {
            return Ok(Cause::Unknown);
        }
        if let Judged::Compared(compared) = here
            && let Some(candidate) = self.candidate_grid(&scores, &compared.layout)?
        {
            let is_best = |&row: &usize| candidate.is_best(row, &theirs[row]);
            let explains = compared.judgement.outcome.agrees() && rows.iter().all(is_best);
            return Ok(fault_unless(explains, Cause::Rounding));
        }
        // The candidate's own were not recorded: they are off by what is allowed of them, or by what they were made of.
        let (before, _) = self.graph.nearest_before(scores.at, |i| taps[i].is_compared());
        let off = |&i: &usize| if let Judged::Compared(read) = &taps[i] { read.judgement.size() } else { None };
        let noise = before.iter().filter_map(off).fold(allowed, f64::max).sqrt();
        let grid = Grid { unit: CHOICE_ROOM * noise, ..scores.grid };
        Ok(fault_unless(rows.iter().all(|&row| grid.is_best(row, &theirs[row])), Cause::Unknown))
    }

    /// What the reference's choice is made of: the nearest tap of so many rows before it of which it takes the best, else the nearest.
    fn scores(&self, index: usize, chosen: &Chosen) -> Result<Option<Scores>, DumpError> {
        let place = |index: usize| self.graph.places()[index];
        let (read, _) = self.graph.nearest_before(index, |i| held(self.reference, place(i)).is_some());
        let mut nearest = None;
        for &at in read.iter().rev() {
            let Some(entry) = held(self.reference, place(at)) else { continue };
            let Some(grid) = Grid::of(self.reference, &entry, &entry.shape)? else { continue };
            let fits = grid.rows().len() == chosen.len()
                && chosen.first().is_some_and(|of_a_token| of_a_token.len() < grid.width);
            if !fits {
                continue;
            }
            let are_ranked = (0..chosen.len()).all(|row| grid.is_best(row, &chosen[row]));
            let scores = Scores { at, entry, grid, are_ranked };
            if are_ranked {
                return Ok(Some(scores));
            }
            nearest = nearest.or(Some(scores));
        }
        Ok(nearest)
    }

    /// The candidate's scores, in the reference's order.
    fn candidate_grid(&self, scores: &Scores, layout: &Layout) -> Result<Option<Grid>, DumpError> {
        let place = self.graph.places()[scores.at];
        let values =
            self.with_pair(place, layout, |pair, _| (0..pair.len()).map(|i| pair.candidate(i)).collect::<Vec<_>>())?;
        let stored = held(self.candidate, place);
        Ok(values.and_then(|values| Grid::new(values, stored.as_ref().unwrap_or(&scores.entry), &scores.entry.shape)))
    }

    /// Why a run does not pass of which tokens went to other experts: what follows them was not compared.
    pub(crate) fn behind_other_experts(&self, found: &[Judged]) -> Option<String> {
        let reason = |index: usize| if let Judged::Unchecked(reason) = &found[index] { Some(reason) } else { None };
        let is_flip = |index: &usize| matches!(reason(*index), Some(Reason::OtherExperts { .. }));
        let first = (0..found.len()).find(is_flip)?;
        let reached = self.graph.nearest_after(first, |_| false).1;
        let is_lost = |&index: &usize| match &found[index] {
            Judged::Unchecked(reason) => matches!(reason, Reason::BehindOtherExperts(_)),
            Judged::Compared(judged) => self.options.rows.is_none() && judged.positions.is_some(),
            _ => false,
        };
        let agree = found.iter().filter(|here| here.agrees()).count();
        reached.iter().any(is_lost).then(|| {
            format!(
                "what was compared agrees ({agree} taps), but {}: {}; what follows cannot be compared from there on: replay judges it on the candidate's own inputs",
                name_of(self.alignment(), self.graph.places()[first]),
                reason(first).map(Reason::to_string).unwrap_or_default()
            )
        })
    }
}

/// Whether a tap holds the experts that a router chose.
fn is_choice(tap: Tap) -> bool {
    tap.is_open() && tap.layer.is_some() && tap.to_string().rsplit('.').next() == Some(CHOICE)
}

/// What a dump holds at a place, whole.
fn held(dump: &Dump, place: Place) -> Option<Entry> {
    let open = || dump.find_open(place.tap, place.step);
    if place.tap.is_open() { open() } else { dump.find(place.tap, place.step).cloned() }
}

fn with_outcome(judged: &Compared, outcome: Outcome) -> Judged {
    Judged::from(Compared { judgement: Judgement { outcome, ..judged.judgement.clone() }, ..judged.clone() })
}

fn behind(place: Option<Place>) -> Judged {
    Judged::Unchecked(place.map_or(Reason::AxesUnknown, Reason::BehindOtherExperts))
}
