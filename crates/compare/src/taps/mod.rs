//! Judges every tap in forward order: as recorded, in the layout that fits, and with the errors that its operation may have passed on.

pub(crate) mod aligned;
mod by_place;
pub(crate) mod cache;
pub(crate) mod choice;
pub(crate) mod context;
mod declared;
pub(crate) mod flat;
mod free_order;
pub(crate) mod last_rows;
pub(crate) mod noise;
pub(crate) mod open;
pub(crate) mod partial;
pub(crate) mod propagation;
pub(crate) mod ranks;
pub(crate) mod share;
pub(crate) mod tap;

use firstdiff_trace::{DumpError, Entry};

use crate::graph::Place;
use crate::report::log::{LogEntry, Stage};
use crate::taps::aligned::AlignedTap;
use crate::taps::choice::is_choice;
use crate::taps::context::{ComparisonContext, TapJudgement};
use crate::threads;

/// How many taps are read at once: enough to keep all threads busy, and few enough to map.
const SIDE_BY_SIDE: usize = 32;

/// Judges each of `places` by its two tensors, in parallel: while one is computed another is read, and small ones keep all threads busy.
pub(crate) fn by_themselves<'r>(
    context: &'r ComparisonContext<'_>,
    places: &'r [Place],
) -> impl Iterator<Item = Result<TapJudgement, DumpError>> + 'r {
    let judged = |some: &'r [Place]| threads::map(some.len(), |i| context.judged_by_itself(some[i]));
    portions(context, places).flat_map(judged)
}

/// `places` in portions, each with a fixed number that the reference holds: a graph may have many more.
fn portions<'r>(context: &'r ComparisonContext<'_>, places: &'r [Place]) -> impl Iterator<Item = &'r [Place]> {
    let mut rest = places;
    std::iter::from_fn(move || {
        let is_held = |place: &Place| place.tap.is_open() || context.reference.find(place.tap, place.step).is_some();
        let mut held = rest.iter().enumerate().filter(|(_, place)| is_held(place));
        let end = held.nth(SIDE_BY_SIDE - 1).map_or(rest.len(), |(at, _)| at + 1);
        let (some, others) = rest.split_at(end);
        rest = others;
        (!some.is_empty()).then_some(some)
    })
}

/// Every tap judged by itself, in the order of the graph, with a log of each.
pub(crate) struct JudgedTaps {
    pub(crate) taps: Vec<TapJudgement>,
    pub(crate) log: Vec<Vec<LogEntry>>,
}

/// Aligns and judges every tap. `progress` is called before each with its number and their count.
pub(crate) fn judge_taps(
    context: &ComparisonContext<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<JudgedTaps, DumpError> {
    let places = context.graph.places();
    let mut judged = JudgedTaps { taps: Vec::with_capacity(places.len()), log: Vec::with_capacity(places.len()) };
    for ((index, &place), by_itself) in places.iter().enumerate().zip(by_themselves(context, places)) {
        progress(index, places.len());
        let mut log: Vec<LogEntry> = Vec::new();
        let by_itself = by_itself?;
        log.extend(by_itself.changed_entry(Stage::Tensors, log.last()));
        let in_doubt = context.doubted(place, by_itself);
        log.extend(in_doubt.changed_entry(Stage::DumpInDoubt, log.last()));
        // Expert numbers cannot be off by a little.
        let here = if is_choice(place.tap) {
            let chosen = context.judge_choice(&judged.taps, index, in_doubt)?;
            log.extend(chosen.changed_entry(Stage::Choice, log.last()));
            chosen
        } else {
            let in_order = match context.judge_by_place(place, &in_doubt)? {
                Some(by_place) => by_place,
                None => context.in_free_order(place, in_doubt)?,
            };
            log.extend(in_order.changed_entry(Stage::Choice, log.last()));
            let with_input = context.with_input_error(&judged.taps, index, in_order)?;
            log.extend(with_input.changed_entry(Stage::InputError, log.last()));
            with_input
        };
        judged.taps.push(here);
        judged.log.push(log);
    }
    Ok(judged)
}

impl ComparisonContext<'_> {
    /// One tap judged by its two tensors, earlier or now.
    fn judged_by_itself(&self, place: Place) -> Result<TapJudgement, DumpError> {
        let before = self.options.judged.as_ref().map(|before| before.judged(self, place)).transpose()?.flatten();
        before.map_or_else(|| self.judge(place, self.aligned(place)), Ok)
    }

    /// Judges one tap by its two tensors.
    fn judge(&self, place: Place, aligned: AlignedTap<'_>) -> Result<TapJudgement, DumpError> {
        Ok(match aligned {
            AlignedTap::Settled(judged) => judged,
            AlignedTap::Whole { left, right } => self.judge_whole(place, &left, &right)?,
            AlignedTap::Flat { left, right } => self.judge_flat(&left, &right)?,
            AlignedTap::OnePart { whole, part, side } => self.judge_one_part(place, &whole, part, side)?,
            AlignedTap::TwoParts { left, right } => self.judge_two_parts(place, left, right),
            AlignedTap::Open { left, right } => self.as_declared(place, self.judge_whole(place, &left, &right)?),
        })
    }

    fn judge_whole(&self, place: Place, left: &Entry, right: &Entry) -> Result<TapJudgement, DumpError> {
        let (reference, candidate) = (self.reference.read(left)?, self.candidate.read(right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let allowed = self.allowance(place, self.allowed(place, left, right));
        Ok(self.tap_judge(left, &reference, right, &candidate).judge(&allowed))
    }
}
