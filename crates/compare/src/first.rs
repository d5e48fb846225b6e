//! Where do two dumps part? Every tap judged, then read in the order and by the dependencies of the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firstdiff_trace::{Cache, Dump, DumpError, Entry, Rows, Site, Tap};

use crate::anatomy::{self, Anatomy, Undone};
use crate::cache;
use crate::counted::steps;
use crate::graph::{Graph, Place, op_of};
use crate::judge::{Judgement, Outcome};
use crate::laid::{Laid, name_of};
use crate::last::lengths;
use crate::noise::{NOISE_ROOM, Noise};
use crate::pair::{Layout, Operand};
use crate::parts::in_part;
use crate::positions::told_chunks;
use crate::probe::blind_spots;
use crate::profile::{Extent, Profile, allowed_nmse, storage_nmse};
use crate::reason::{Reason, ShapeMismatch, Side, Warning};
use crate::report::{FirstDivergence, KnownPart, Report, Status, TapReport, Verdict, start};
use crate::settle::undone_orders;
use crate::slots;
use crate::steps::{Chunks, contradicted, misaligned};

/// What a comparison is told beside the two dumps.
#[derive(Clone, Debug)]
pub struct Options {
    /// In what arithmetic a right candidate works.
    pub profile: Profile,
    /// Token positions to compare; all where `None`.
    pub rows: Option<Rows>,
    /// The NMSE allowed at a place where it was measured; elsewhere the profile's table.
    pub allowed: BTreeMap<Place, f64>,
    /// The places to look at; all where `None`. The others are as if nobody had recorded them.
    pub only: Option<BTreeSet<Place>>,
    /// How the two were laid together by token position, where they took the tokens in other chunks.
    pub laid: Option<Arc<Laid>>,
    /// The type in which either side keeps keys and values, the coarser of the two.
    pub cache: Cache,
    /// How far a second right run is from the reference, where there is one: what a tap is allowed then.
    pub noise: Option<Noise>,
}

impl Options {
    /// All rows, and the table of `profile`.
    pub fn new(profile: Profile) -> Options {
        let (cache, allowed) = (Cache::F32, BTreeMap::new());
        Options { profile, rows: None, allowed, only: None, laid: None, cache, noise: None }
    }
}

/// What was found at a place of the graph.
pub(crate) enum Found {
    /// Neither side recorded it.
    Nothing,
    Unchecked(Reason),
    /// Both recorded it and they cannot be laid together as they stand.
    Misfit(ShapeMismatch),
    /// Both recorded it, and not of the same: not compared in any layout.
    Apart(Reason),
    /// Both recorded it, and this NMSE may be what its operation passed on, or not.
    Unclear(f64),
    Judged(Box<Judged>),
}

pub(crate) struct Judged {
    pub(crate) judgement: Judgement,
    pub(crate) shape: Vec<usize>,
    pub(crate) positions: Option<Vec<usize>>,
    pub(crate) layout: Layout,
    /// How it stands if nothing confirms the layout; `None` where the layout needs no confirming.
    pub(crate) plain: Option<Plain>,
    /// What was compared of it, where not all.
    pub(crate) part: Option<KnownPart>,
}

/// How a tap stands as it is.
pub(crate) enum Plain {
    Judged(Box<Judgement>),
    /// It cannot be laid against the reference.
    Misfit(ShapeMismatch),
}

impl Found {
    /// Of a tap whose two sides share no token position: what was asked for need not be there, and else it should have been compared.
    pub(crate) fn without_rows(asked: bool) -> Found {
        match asked {
            true => Found::Unchecked(Reason::NoneOfTheRowsAsked),
            false => Found::Apart(Reason::NoCommonPosition),
        }
    }

    /// Why nothing is said of it.
    fn unchecked(&self) -> Option<Reason> {
        match self {
            Found::Unchecked(reason) | Found::Apart(reason) => Some(reason.clone()),
            Found::Misfit(mismatch) => Some(Reason::Shape(mismatch.clone())),
            Found::Unclear(_) => Some(Reason::Inconclusive),
            Found::Nothing | Found::Judged(_) => None,
        }
    }

    pub(crate) fn agrees(&self) -> bool {
        matches!(self, Found::Judged(judged) if judged.judgement.outcome.agrees())
    }

    /// Whether it is off by more than rounding, and what it reads may explain that, or not.
    pub(crate) fn is_unclear(&self) -> bool {
        match self {
            Found::Unclear(_) => true,
            Found::Judged(judged) => judged.judgement.outcome == Outcome::Unclear,
            _ => false,
        }
    }

    fn is_in_part(&self) -> bool {
        matches!(self, Found::Judged(judged) if judged.part.is_some())
    }

    pub(crate) fn is_judged(&self) -> bool {
        matches!(self, Found::Judged(_))
    }

    /// Agrees only under a layout that something else has to confirm.
    pub(crate) fn provisional(&self) -> Option<&Layout> {
        match self {
            Found::Judged(judged) if judged.plain.is_some() => Some(&judged.layout),
            _ => None,
        }
    }
}

/// Compares `candidate` with `reference`. `graph` says in what order taps are produced and who reads whom; without a model,
/// [`vocabulary_graph`] serves. `progress` is called before each tap with its number and their count.
///
/// # Errors
/// When a file cannot be read. A difference is no error.
pub fn compare(
    reference: &Dump,
    candidate: &Dump,
    graph: &Graph,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DumpError> {
    let recorded = options.laid.as_ref().map_or([reference, candidate], |laid| laid.runs.each_ref().map(|run| &**run));
    let misaligned = contradicted(recorded).or_else(|| match options.laid {
        Some(_) => None,
        None => misaligned(reference, candidate, options.rows.as_ref()),
    });
    let mut extent = extent(reference, graph);
    if let Some(laid) = &options.laid {
        extent.positions = laid.together();
    }
    let (chunks, doubts) = (told_chunks(reference, candidate), cache::doubts(recorded[0], recorded[1]));
    let prompt = prompt(reference);
    let lengths = [reference, candidate].map(lengths);
    let run = Run { reference, candidate, graph, options, extent, prompt, misaligned, chunks, lengths, doubts };
    let total = graph.places().len();
    let mut found = Vec::with_capacity(total);
    for (index, &place) in graph.places().iter().enumerate() {
        progress(index, total);
        let here = run.doubted(place, run.look(place)?);
        found.push(run.with_inheritance(&found, index, here)?);
    }
    run.settle_layouts(&mut found)?;
    run.doubt_positions(&mut found);
    run.doubt_continuations(&mut found);
    let hidden = run.forgive_hidden(&mut found)?;
    run.doubt_rotations(&mut found);
    run.doubt_orders(&mut found);
    let replicas = run.check_replicas(&mut found)?;
    let mut report = run.report(found)?;
    report.warnings.splice(0..0, hidden.into_iter().chain(replicas).map(Warning::Note));
    Ok(report)
}

/// The vocabulary's own graph over the taps and steps of both dumps.
pub fn vocabulary_graph(reference: &Dump, candidate: &Dump) -> Graph {
    let entries = reference.entries().iter().chain(candidate.entries()).map(|e| Place { step: e.step, tap: e.tap });
    let parts = reference.parts().iter().chain(candidate.parts()).map(|p| Place { step: p.step, tap: p.tap });
    Graph::of_vocabulary(entries.chain(parts))
}

fn extent(reference: &Dump, graph: &Graph) -> Extent {
    let layers = graph.places().iter().filter_map(|p| p.tap.layer).max().map_or(0, |l| l.saturating_add(1));
    let steps = reference.entries().iter().map(|e| e.step).collect::<BTreeSet<_>>().len();
    Extent { layers, positions: prompt(reference).saturating_add(steps) }
}

/// Token positions of the prefill.
fn prompt(reference: &Dump) -> usize {
    let rows = |e: &Entry| e.shape.get(e.tap.site.position_axis()).copied();
    // The least that any tap shows: a tap of another layout must not loosen what is allowed.
    let shown = || reference.entries().iter().filter(|e| e.step == 0).filter_map(rows).min();
    reference.meta().tokens.as_ref().map(Vec::len).or_else(shown).unwrap_or(0)
}

pub(crate) struct Run<'a> {
    pub(crate) reference: &'a Dump,
    pub(crate) candidate: &'a Dump,
    pub(crate) graph: &'a Graph,
    pub(crate) options: &'a Options,
    pub(crate) extent: Extent,
    /// Token positions of the prefill.
    prompt: usize,
    /// Why the steps do not stand for the same token positions, where they do not.
    pub(crate) misaligned: Option<String>,
    /// How the tokens were taken, as either side says or shows.
    pub(crate) chunks: Option<Chunks>,
    /// Token positions of each step of either side, as far as they are known.
    pub(crate) lengths: [BTreeMap<u32, usize>; 2],
    /// What of the recorded keys and values is not to be passed.
    pub(crate) doubts: BTreeMap<(u32, Tap), Reason>,
}

impl Run<'_> {
    /// Judges one place.
    fn look(&self, place: Place) -> Result<Found, DumpError> {
        if self.options.only.as_ref().is_some_and(|only| !only.contains(&place)) {
            return Ok(Found::Nothing);
        }
        if let Some(found) = self.look_in_part(place)? {
            return Ok(found);
        }
        if let Some(reason) = self.lacks_a_rank(place) {
            return Ok(Found::Apart(reason));
        }
        let (left, right) = match self.both(place) {
            (Some(left), Some(right)) => (left, right),
            (Some(_), None) | (None, Some(_)) if let Some(reason) = self.apart(place) => {
                return Ok(Found::Apart(reason));
            }
            (Some(_), None) => return Ok(Found::Unchecked(Reason::NotIn(Side::Candidate))),
            (None, Some(_)) => return Ok(Found::Unchecked(Reason::NotIn(Side::Reference))),
            (None, None) => return Ok(Found::Nothing),
        };
        if let Some(reason) = self.options.laid.as_ref().and_then(|laid| laid.unchecked.get(&place)) {
            return Ok(Found::Apart(reason.clone()));
        }
        if self.misaligned.is_some() {
            return Ok(Found::Apart(Reason::OtherTokens));
        }
        if let Some(found) = self.flat(&left, &right)? {
            return Ok(found);
        }
        if let Some(noise) = self.noise(place).filter(|noise| noise.is_drowned()) {
            return Ok(Found::Apart(Reason::Drowned { nmse: noise.nmse }));
        }
        let (reference, candidate) = (self.reference.read(&left)?, self.candidate.read(&right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let allowed = self.allowance(place, self.allowed(place, &left, &right));
        Ok(self.lay(&left, &reference, &right, &candidate).judge(&allowed))
    }

    pub(crate) fn allowed(&self, place: Place, left: &Entry, right: &Entry) -> f64 {
        let stored = [left.dtype, right.dtype];
        let own = match self.options.allowed.get(&place) {
            Some(measured) => measured + stored.map(storage_nmse).iter().sum::<f64>(),
            None => allowed_nmse(self.options.profile, place.tap, self.extent, stored),
        };
        self.noise(place).map_or(own, |noise| own.max(NOISE_ROOM * noise.nmse))
    }

    /// The token position at which a step begins.
    pub(crate) fn start(&self, step: u32) -> usize {
        start(self.laid(), self.prompt, step)
    }

    fn report(&self, found: Vec<Found>) -> Result<Report, DumpError> {
        let status = self.statuses(&found);
        let mut warnings = blind_spots(self.reference, self.candidate, self.options.profile, self.laid())?;
        let unknown = |(here, place): (&Found, &Place)| here.is_judged() && self.is_of_unknown_position(*place);
        if !self.last_is_declared() && found.iter().zip(self.graph.places()).any(unknown) {
            warnings.push(Warning::Note(
                "one row of each tap is known, the last, and nothing says of how many tokens (--tokens): of a prompt of one token, no mistake in RoPE, attention scale or \
                 masks can show"
                    .into(),
            ));
        }
        let first = (0..found.len()).find(|&i| status[i] == Some(Status::Diverged));
        let places: Vec<usize> = (0..found.len()).filter(|&i| status[i].is_some()).collect();
        let mut taps: Vec<TapReport> =
            places.iter().filter_map(|&i| Some(self.tap_report(i, &found[i], status[i]?))).collect();
        let known: BTreeSet<Place> = self.graph.places().iter().copied().collect();
        if self.options.only.is_none() {
            taps.extend(self.strangers(&known));
        }
        let unnamed: Vec<String> = self.recorded().iter().flat_map(|run| run.unnamed()).cloned().collect();
        let verdict = self.verdict(&found, &taps, first.is_some());
        let notes = self.amplified(&found).into_iter().chain(undone_orders(&found)).chain(in_part(&taps));
        let notes = notes.chain(self.first_alone(&found).map(|(words, _)| words)).chain(self.taken_for_last());
        warnings.extend(notes.map(Warning::Note));
        let first = match first {
            Some(index) => {
                let at = places.iter().position(|&i| i == index).unwrap_or_default();
                Some(self.first_divergence(&found, index, at)?)
            }
            None => None,
        };
        let (profile, prompt, cache) = (self.options.profile, self.prompt, self.options.cache);
        let laid = self.options.laid.clone();
        Ok(Report { verdict, profile, cache, prompt, first, taps, warnings, unnamed, laid })
    }

    pub(crate) fn laid(&self) -> Option<&Laid> {
        self.options.laid.as_deref()
    }

    /// The two dumps as they were recorded.
    pub(crate) fn recorded(&self) -> [&Dump; 2] {
        self.laid().map_or([self.reference, self.candidate], |laid| laid.runs.each_ref().map(|run| &**run))
    }

    fn statuses(&self, found: &[Found]) -> Vec<Option<Status>> {
        let mut status: Vec<Option<Status>> = Vec::with_capacity(found.len());
        for (index, here) in found.iter().enumerate() {
            status.push(match here {
                Found::Nothing => None,
                Found::Unchecked(_) | Found::Misfit(_) | Found::Apart(_) | Found::Unclear(_) => Some(Status::Unchecked),
                Found::Judged(judged) => Some(match judged.judgement.outcome {
                    Outcome::Exact => Status::Exact,
                    Outcome::Rounding => Status::Rounding,
                    Outcome::Unclear => Status::Unchecked,
                    Outcome::Differs(_) => {
                        let (before, _) = self.graph.nearest_before(index, |i| found[i].is_judged());
                        let inputs_agree = before.iter().all(|&i| found[i].agrees());
                        if inputs_agree { Status::Diverged } else { Status::Downstream }
                    }
                }),
            });
        }
        status
    }

    fn tap_report(&self, index: usize, found: &Found, status: Status) -> TapReport {
        let place = self.graph.places()[index];
        let op = self.graph.op(index).to_owned();
        let blank = TapReport::unchecked(place, op);
        let blank = TapReport { status, ..blank };
        match found {
            Found::Nothing => blank,
            Found::Unchecked(_) | Found::Misfit(_) | Found::Apart(_) | Found::Unclear(_) => {
                TapReport { reason: found.unchecked(), ..blank }
            }
            Found::Judged(judged) => {
                let Judged { judgement, shape, positions, layout, part, .. } = &**judged;
                let reason = match (&judgement.outcome, layout) {
                    (Outcome::Differs(difference), layout) => {
                        let layout = Some(layout.clone()).filter(|layout| matches!(layout, Layout::Stored(_)));
                        Some(Reason::Differs { difference: difference.clone(), layout })
                    }
                    (_, Layout::Same) => None,
                    (_, layout) => Some(Reason::ReadIn(layout.clone())),
                };
                let (metrics, allowed) = (Some(judgement.metrics), Some(judgement.allowed));
                let single = shape.get(place.tap.site.position_axis()) == Some(&1) || shape.len() == 1;
                let is_last = single && part.is_none() && self.is_of_unknown_position(place);
                TapReport {
                    reason,
                    metrics,
                    balanced: judgement.balanced,
                    allowed,
                    shape: shape.clone(),
                    positions: positions.clone(),
                    is_last,
                    part: part.clone(),
                    noise: self.noise(place).map(|noise| noise.nmse),
                    ..blank
                }
            }
        }
    }

    /// Taps that a dump holds and the graph does not.
    fn strangers(&self, known: &BTreeSet<Place>) -> Vec<TapReport> {
        let entries = self.reference.entries().iter().chain(self.candidate.entries());
        let places: BTreeSet<Place> =
            entries.map(|e| Place { step: e.step, tap: e.tap }).filter(|p| !known.contains(p)).collect();
        let reason = Some(Reason::NotOfTheModel);
        let report = |place: Place| TapReport {
            reason: reason.clone(),
            ..TapReport::unchecked(place, op_of(place.tap.site).into())
        };
        places.into_iter().map(report).collect()
    }

    fn verdict(&self, found: &[Found], taps: &[TapReport], diverged: bool) -> Verdict {
        if diverged {
            return Verdict::Diverged;
        }
        if let Some(reason) = self.misaligned.as_ref().filter(|_| self.laid().is_some()) {
            return Verdict::Incomparable(reason.clone());
        }
        if let Some(parting) = self.laid().and_then(Laid::parting) {
            let agree = taps.iter().filter(|t| t.status.agrees()).count();
            let before = if agree > 0 { format!("; up to there {agree} taps agree") } else { String::new() };
            return Verdict::Incomparable(format!("{parting}{before}"));
        }
        if taps.iter().all(|t| t.metrics.is_none()) {
            let names = |dump: &Dump| match (dump.entries().first(), dump.unnamed().first()) {
                (Some(entry), _) => format!("{} ...", entry.tap),
                (None, Some(name)) => format!("'{name}', which is no tap name", name = name.escape_debug()),
                (None, None) => "nothing".into(),
            };
            if let Some(reason) = &self.misaligned {
                return Verdict::Incomparable(reason.clone());
            }
            let misfit = found.iter().zip(self.graph.places()).find_map(|(here, place)| match here {
                Found::Misfit(_) | Found::Apart(_) | Found::Unclear(_) => {
                    Some(format!("{}: {}{}", name_of(self.laid(), *place), here.unchecked()?, self.untold_steps()))
                }
                _ => None,
            });
            let reason = misfit.unwrap_or_else(|| {
                format!(
                    "the dumps share no tap: the reference has {}, the candidate {}{}",
                    names(self.reference),
                    names(self.candidate),
                    match self.candidate.unnamed().len() {
                        0 => String::new(),
                        unknown => format!(
                            "; {unknown} of its {} names are unknown: name its tensors in a firstdiff.toml, or let `firstdiff align` propose names by content",
                            unknown + self.candidate.entries().len() + self.candidate.parts().len()
                        ),
                    }
                )
            });
            return Verdict::Incomparable(reason);
        }
        // Both sides recorded it, nobody could look, and nothing behind it vouches for it.
        for (index, place) in self.graph.places().iter().enumerate() {
            if let (Found::Misfit(_) | Found::Apart(_) | Found::Unclear(_), Some(reason)) =
                (&found[index], found[index].unchecked())
            {
                let (after, _) = self.graph.nearest_after(index, |i| found[i].is_judged());
                if after.is_empty() {
                    return Verdict::Incomparable(format!(
                        "{} could not be compared, and nothing after it was: {reason}",
                        name_of(self.laid(), *place)
                    ));
                }
            }
        }
        let tells =
            |t: &TapReport| t.place.tap.site != Site::H0 && t.metrics.is_some_and(|m| m.correlation().is_some());
        if !taps.iter().any(tells) {
            let which: Vec<String> =
                taps.iter().filter(|t| t.metrics.is_some()).map(|t| name_of(self.laid(), t.place)).take(3).collect();
            return Verdict::Incomparable(format!(
                "only {} could be compared: that shows nothing of the model",
                which.join(", ")
            ));
        }
        if let Some((words, true)) = self.first_alone(found) {
            let agree = taps.iter().filter(|t| t.status.agrees()).count();
            return Verdict::Incomparable(format!(
                "{words}, and the reference has more positions; {agree} taps agree at that one"
            ));
        }
        match self.not_passed(found) {
            Some(reason) => Verdict::Incomparable(reason),
            None => Verdict::Parity,
        }
    }

    /// What could lay runs together that took the tokens in another number of steps.
    fn untold_steps(&self) -> String {
        let runs = [self.reference, self.candidate];
        let [ours, theirs] = runs.map(|dump| steps(dump).len());
        if ours == theirs || self.laid().is_some() || runs.iter().all(|dump| dump.meta().tokens.is_some()) {
            return String::new();
        }
        let word = |count: usize| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
        format!(
            "; the reference has {} and the candidate {}: name the tokens of all positions (--tokens IDS), and they are laid together by position",
            word(ours),
            word(theirs)
        )
    }

    fn first_divergence(&self, found: &[Found], index: usize, at: usize) -> Result<FirstDivergence, DumpError> {
        let places = self.graph.places();
        let (before, between) = self.graph.nearest_before(index, |i| found[i].is_judged());
        let (after, _) = self.graph.nearest_after(index, |i| found[i].is_judged());
        let (nmse, layout) = match &found[index] {
            Found::Judged(judged) => (judged.judgement.metrics.nmse().unwrap_or(f64::INFINITY), &judged.layout),
            _ => (f64::INFINITY, &Layout::Same),
        };
        let harmless = !after.is_empty() && after.iter().all(|&i| found[i].agrees() && !found[i].is_in_part());
        Ok(FirstDivergence {
            index: at,
            after: before.last().map(|&i| places[i]),
            reads: self.graph.reads(index).iter().map(|&i| places[i]).collect(),
            unchecked_between: between.iter().map(|&i| places[i]).collect(),
            unrecorded_layers: self
                .graph
                .unrecorded_layers(|place| place == places[index] || between.iter().any(|&i| places[i] == place)),
            harmless_from: after.first().filter(|_| harmless).map(|&i| places[i]),
            unseen_keys: self.unseen_keys(found, index, &before, &between),
            anatomy: self.anatomy(places[index], layout, nmse)?,
        })
    }

    /// Whether keys or values of token positions that were not compared are read on the way from `before` to `index`.
    pub(crate) fn unseen_keys(&self, found: &[Found], index: usize, before: &[usize], between: &[usize]) -> bool {
        // A query, a product or a probability of a position stands for that position alone.
        let own = |site| matches!(site, Site::Q | Site::QNorm | Site::QRope | Site::Qk | Site::Scores | Site::Probs);
        let partial = |i: &usize| {
            let some = matches!(&found[*i], Found::Judged(judged) if judged.positions.is_some());
            some && !own(self.graph.places()[*i].tap.site)
        };
        let attends = |i: &usize| matches!(self.graph.places()[*i].tap.site, Site::Qk | Site::Context);
        between.iter().chain([&index]).any(attends) && before.iter().any(partial)
    }

    fn anatomy(&self, place: Place, layout: &Layout, nmse: f64) -> Result<Anatomy, DumpError> {
        let found = self.with_pair(place, layout, |pair, own| anatomy::anatomy(pair, 4.0 * own))?;
        let mut anatomy = found.unwrap_or_default();
        anatomy.ranks = self.by_rank(place, layout)?;
        if let Some(other) = self.other_tap(place, nmse)? {
            anatomy.undone_by.insert(0, other);
        }
        if self.laid().is_some() {
            let moved = self.with_pair(place, &Layout::Same, |pair, own| slots::moved_keys(pair, 4.0 * own))?;
            anatomy.undone_by.extend(moved.flatten());
        }
        Ok(anatomy)
    }

    /// Another tap of the reference that the candidate holds here, or another position's row.
    fn other_tap(&self, place: Place, nmse: f64) -> Result<Option<Undone>, DumpError> {
        let find = |dump: &Dump| dump.find(place.tap, place.step).cloned();
        let (Some(left), Some(right)) = (find(self.reference), find(self.candidate)) else { return Ok(None) };
        let candidate = self.candidate.read(&right)?;
        let values = candidate.values();
        let operand = Operand { values: &values, shape: &right.shape, rows: right.rows.as_ref() };
        let own = 4.0 * self.allowed(place, &left, &right);
        if let Some(laid) = self.laid()
            && let Some(row) = slots::other_position(self.reference, laid, place, &operand, own, nmse)?
        {
            return Ok(Some(row));
        }
        anatomy::other_tap(self.reference, &left, &operand, own, nmse)
    }
}
