//! Judges the taps of a candidate one after the other: each is held against what its operation makes of the candidate's own values before it.

mod allowance;
mod choice;
mod lockstep;

use std::collections::{BTreeSet, HashMap, HashSet};

use firstdiff_compare::{Place, Status, TapReport};
use firstdiff_program::{Bench, Kind, Operand, Program, Slice, Tensor, View};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};

use crate::program::arrays::{array, floats, tensor};
use crate::program::condition::condition;
use crate::program::held::{Held, Part};
use crate::program::judge::allowance::{
    as_the_table, is_norm_with_gain, is_of_a_row, multiplies_by_tables, of_chance, of_edges, rounded_if,
    without_cancelling,
};
use crate::program::judge::choice::chosen;
use crate::program::judge::lockstep::{Due, Lockstep, is_of_16_bits};
use crate::program::kept::as_kept;
use crate::program::layouts::{Decided, Layouts, Reading};
use crate::program::orders::{Both, Orders};
use crate::program::replays::{Costs, Replays, operation};
use crate::program::slices::on_the_way;
use crate::program::slices::stretch;
use crate::program::{Candidate, Recording, taken_back};
use crate::replay::operation::own_unit;
use crate::replay::operation::{Operation, is_coarse, is_half, lost};
use crate::replay::padding::blame_unmasked_padding;
use crate::replay::reason::{Reason, UnfitInput};
use crate::replay::residual::{Fit, added};
use crate::replay::right::distance;
use crate::replay::{Replay, ReplayError, Replayed, Routing, can_be_read};
use crate::tolerance::replay::{
    FEW_ROWS, INPUT_ROOM, MOST_OF_THE_REFERENCE, NORM_AND_GAIN, REFERENCE_ROOM, TABLE_SHARE,
};

/// What is known while taps are judged.
pub(super) struct Judge<'r> {
    recording: &'r Recording<'r>,
    candidate: &'r Candidate<'r>,
    pub(super) held: &'r mut Held,
    /// How the comparison lists the candidate's taps.
    reports: HashMap<Place, &'r TapReport>,
    /// Choices of another number of experts than the reference's: theirs, and its.
    counts: &'r HashMap<Place, [usize; 2]>,
    /// The operations that make those choices.
    counted: BTreeSet<usize>,
    pub(super) lockstep: Lockstep<'r>,
    bench: Bench<'r>,
    rounded: Option<Bench<'r>>,
    layouts: Layouts<'r>,
    orders: Orders,
    /// Operations whose choice is not known, and why.
    open_at: HashMap<usize, String>,
    /// Of these what something reads that is not right by the reference's own value.
    missed: BTreeSet<usize>,
    /// Taps in the order of a sort, of which nothing could be computed that tells which: the candidate's, and not the program's.
    own_order: BTreeSet<usize>,
    /// Operations that chose otherwise: the values that come with a choice are not those of the candidate's.
    other_choices: HashMap<usize, Place>,
    /// Taps of which nobody knows the positions that are not held.
    in_part: BTreeSet<usize>,
    /// Of these what is wrong, or could not be judged.
    wrong_parts: BTreeSet<usize>,
    places: Vec<Place>,
    /// What rounding cost each tap in the steps before.
    noise: HashMap<Tap, f64>,
    costs: HashMap<Place, Costs>,
    /// Whether the candidate is held against itself.
    is_same_run: bool,
    is_right_at_the_end: bool,
    pub(super) taps: Vec<Replayed>,
    /// For each of them its index in the program.
    pub(super) numbers: Vec<usize>,
}

/// A tap that is judged: what the candidate has, and what makes it.
struct Judged<'s> {
    tap: usize,
    own: ArrayD<f64>,
    part: Option<Part>,
    slice: Slice<'s>,
    /// What it is computed from, and what is made on the way.
    from: Vec<Tap>,
    through: Vec<Tap>,
    /// Whether its rows, or those of what it reads, are in an order of the candidate's own.
    is_in_own_order: bool,
}

impl<'r> Judge<'r> {
    pub(super) fn new(
        (recording, candidate): (&'r Recording<'r>, &'r Candidate<'r>),
        held: &'r mut Held,
        (undecided, counts): (&HashSet<Place>, &'r HashMap<Place, [usize; 2]>),
        decided: &'r Decided,
    ) -> Judge<'r> {
        let program = recording.program;
        let reports: HashMap<Place, &TapReport> = candidate.taps.iter().map(|tap| (tap.place, tap)).collect();
        let is_same_run = candidate.values.is_of_one_dump();
        let unknown = |tap: usize| {
            let place = held.place(tap);
            let why = match counts.get(&place) {
                Some(&[own, due]) => format!("{place}: {}", Reason::OtherCount { own, due }),
                None if undecided.contains(&place) => {
                    format!("the choice of experts at {place} was not recorded, and what was does not decide it")
                }
                None => return None,
            };
            Some((program.taps()[tap].op, why))
        };
        let is_counted = |&tap: &usize| counts.contains_key(&held.place(tap));
        let counted = (0..program.taps().len()).filter(is_counted).map(|tap| program.taps()[tap].op).collect();
        Judge {
            recording,
            candidate,
            lockstep: Lockstep::new(recording, candidate, held),
            bench: Bench::new(program, candidate.exact(), recording.weights),
            rounded: candidate.arithmetic().map(|own| Bench::new(program, own, recording.weights)),
            layouts: Layouts::of(candidate, decided),
            orders: Orders::of(program, held),
            open_at: program.choices().filter_map(unknown).collect(),
            missed: BTreeSet::new(),
            own_order: BTreeSet::new(),
            other_choices: HashMap::new(),
            in_part: (0..program.taps().len()).filter(|&tap| held.positions(tap).is_some()).collect(),
            wrong_parts: BTreeSet::new(),
            places: (0..program.taps().len()).map(|tap| held.place(tap)).collect(),
            noise: HashMap::new(),
            costs: HashMap::new(),
            is_same_run,
            is_right_at_the_end: !is_same_run && is_right_at_every_end(program, held, &reports),
            reports,
            counts,
            counted,
            taps: Vec::new(),
            numbers: Vec::new(),
            held,
        }
    }

    fn program(&self) -> &'r Program {
        self.recording.program
    }

    /// What is said of a tap that is not judged.
    fn unchecked(&self, tap: usize) -> Replayed {
        unchecked(self.held.place(tap), self.program().said(self.program().taps()[tap].op))
    }

    /// The same, and why it is not.
    fn not_judged(&self, tap: usize, reason: Reason) -> Replayed {
        Replayed { reason: Some(reason), ..self.unchecked(tap) }
    }

    /// Brings places that a choice gives into the program's order.
    pub(super) fn settle_places(&mut self, tap: usize) -> Result<(), ReplayError> {
        let Some(choice) = self.orders.places.open(tap) else { return Ok(()) };
        let due = match choice == tap {
            true => self.lockstep.exact.value(tap)?.map(|value| array(&value)),
            // What stands by its places comes before it.
            false => computed(&self.bench, self.program(), choice, self.held),
        };
        let reference = self.candidate.values.reference(self.held.place(choice))?;
        self.orders.places.settle(choice, due.as_ref(), reference.as_deref(), self.held);
        Ok(())
    }

    /// Reads a tap that agrees with the reference in no layout in the one in which it comes out.
    pub(super) fn read_layout(&mut self, tap: usize) -> Result<(), ReplayError> {
        let (place, record) = (self.held.place(tap), &self.program().taps()[tap]);
        let may_be_moved = self.layouts.is_open(place) && self.held.part(tap).is_none() && !self.held.is_unread(tap);
        if !may_be_moved || record.view.dtype.kind() != Kind::Float {
            return Ok(());
        }
        let Ok(due) = self.lockstep.due(tap)? else { return Ok(()) };
        let name = self.program().said(record.op);
        let costs = (lost(self.candidate.profile, self.candidate.dtype(place)), 0.0, None);
        let operation = operation(place, &name, self.candidate.profile, false, costs);
        let is_right =
            |due: &Due, own: &ArrayD<f64>| operation.judged(own, &due.right, &due.exact).report.status.agrees();
        let own = self.held.get(tap).map(array);
        let (own, is_wrong_beyond) = (own.as_ref(), self.held.beyond(tap).is_some());
        let reading = Reading { place, due: &due.exact, own, is_wrong_beyond, is_right: &|own| is_right(&due, own) };
        let (comes_out, moved) = self.layouts.read(&reading)?;
        if !comes_out {
            let own = moved.as_ref().or(own);
            let benches = (self.program(), &self.bench, self.rounded.as_ref());
            told_by_a_reader(benches, self.held, tap, &mut self.layouts, own, &is_right)?;
        }
        moved.into_iter().for_each(|values| self.held.read_as(tap, values));
        Ok(())
    }

    /// How a tap is judged, and whether what comes behind it goes on with what the candidate holds.
    pub(super) fn replayed(&mut self, tap: usize) -> Result<(Replayed, bool), ReplayError> {
        let part = self.held.part(tap).cloned();
        let own = self.held.get(tap).map(array).or_else(|| part.as_ref().map(|part| part.values.clone()));
        let Some(own) = own else { return Ok(self.without_values(tap)) };
        let (program, place) = (self.program(), self.held.place(tap));
        let mixes_rows = self.leave_out_mixed_rows(tap);
        let slice = self.held.slice(program, tap);
        if !self.candidate.are_tokens_known && reads_tokens(program, &slice) {
            return Ok((self.not_judged(tap, Reason::NoTokenOfStep(place.step)), true));
        }
        let open = self.open_choices(&slice).find_map(|op| self.open_at.get(&op));
        let due = match open {
            Some(why) => Err(why.clone()),
            None if mixes_rows => Due::of((program, &slice), &self.bench, self.rounded.as_ref(), self.held),
            None => self.lockstep.due(tap)?,
        };
        let whole = due.as_ref().ok().filter(|_| part.is_some()).map(|due| due.right.clone());
        let due = due.map(|due| if let Some(part) = &part { due.of_rows(part) } else { due });
        let scores = slice.known().find(|&known| self.held.place(known).tap.last_site() == Site::Scores);
        let scores = scores.filter(|_| place.tap.last_site() == Site::Probs);
        let due = match scores.and_then(|scores| self.held.readable(scores)) {
            Some(scores) => due.map(|due| due.beside_hidden_rows(&own, &array(scores))),
            None => due,
        };
        if due.is_err() && self.held.is_in_own_order(tap) {
            self.held.close(tap);
        }
        let is_in_own_order = due.is_err() || slice.known().any(|known| self.own_order.contains(&known));
        let (from, through) = (self.held.taps_of(slice.known()), self.held.between(program, &slice));
        let mut it = Judged { tap, own, part, slice, from, through, is_in_own_order };
        let judged = self.held_against(&mut it, due)?;
        let judged = self.as_what_it_reads_allows(&it, judged);
        Ok((self.taken_note_of(it, judged, whole), true))
    }

    /// The choices that are not known of what a slice makes: those made in it, and of another number of experts those whose whole order it reads.
    fn open_choices(&self, slice: &Slice<'_>) -> impl Iterator<Item = usize> {
        let read = slice.known().map(|tap| self.program().taps()[tap].op).filter(|op| self.counted.contains(op));
        slice.ops().chain(read).filter(|op| self.open_at.contains_key(op))
    }

    /// A tap of which the candidate holds nothing that can be read.
    fn without_values(&self, tap: usize) -> (Replayed, bool) {
        let (place, dump) = (self.held.place(tap), self.candidate.dump);
        if let Some(&[own, due]) = self.counts.get(&place) {
            let blank = self.not_judged(tap, Reason::OtherCount { own, due });
            let report = TapReport { status: Status::Diverged, ..blank.report.clone() };
            return (Replayed { report, ..blank }, false);
        }
        let reason = match self.reports.get(&place) {
            _ if self.held.is_unread(tap) => {
                Reason::NotEvaluated("nothing shows in which of several orders its rows stand".to_owned())
            }
            _ if !std::ptr::eq(self.candidate.recorded, dump)
                && dump.entry(place.tap, place.step).is_none()
                && self.candidate.recorded.entries().iter().any(|entry| entry.tap == place.tap) =>
            {
                Reason::NotEvaluated("was recorded in other steps, of which nothing whole could be joined".to_owned())
            }
            None => Reason::NotRecorded,
            Some(report) if report.positions.is_some() => Reason::Partial,
            Some(report) => report.why().map_or(Reason::OtherExtent, Reason::NotEvaluated),
        };
        (self.not_judged(tap, reason), true)
    }

    /// Computes a tap without what it reads of which some positions are held, where it mixes positions; whether it does.
    fn leave_out_mixed_rows(&mut self, tap: usize) -> bool {
        let program = self.program();
        let read_in_part: BTreeSet<usize> =
            self.held.slice(program, tap).known().filter(|known| self.in_part.contains(known)).collect();
        let (mixed, by_row): (BTreeSet<usize>, BTreeSet<usize>) =
            read_in_part.into_iter().partition(|&one| mixes(&self.bench, program, tap, one, self.held));
        if !mixed.is_empty() {
            self.held.mixes(tap, &self.in_part - &by_row);
        }
        !mixed.is_empty()
    }

    /// Holds a tap against what is due, where that is known.
    fn held_against(&mut self, it: &mut Judged<'_>, due: Result<Due, String>) -> Result<Replayed, ReplayError> {
        let (program, candidate) = (self.program(), self.candidate);
        let (tap, slice, place) = (it.tap, &it.slice, self.held.place(it.tap));
        let due = match due {
            Ok(due) => due,
            Err(why) => {
                // Where rounding chooses other experts, the reference's value is not what is due.
                let is_open = self.open_choices(slice).next().is_some();
                let is_decided = !is_open || self.counts.is_empty() && !is_coarse(candidate.profile);
                let serves = |report: &&TapReport| !self.is_same_run && (is_decided || report.status.agrees());
                let report = self.reports.get(&place).copied().filter(serves);
                return Ok(beside_the_reference(self.unchecked(tap), why, report, self.is_right_at_the_end));
            }
        };
        // What reads more than the program has cannot be computed by it.
        if slice.known().any(|known| self.held.beyond(known).is_some()) {
            let why = "it reads what the reference's run does not have".to_owned();
            return Ok(self.not_judged(tap, Reason::NotEvaluated(why)));
        }
        if self.mixes_orders(slice) {
            return Ok(self.not_judged(tap, Reason::OrderUnknown));
        }
        if program.taps()[tap].view.dtype.kind() == Kind::Int {
            let is_moved = self.orders.places.is_moved(tap);
            return Ok(chosen(self.unchecked(tap), &it.own, &due, own_unit(candidate.profile), is_moved));
        }
        let (is_whole, places) = (it.part.is_none() && !it.is_in_own_order, &self.places);
        let reference = |tap: usize| of_the_reference(program, candidate, tap, places[tap]);
        let standing = self.orders.settle((program, &self.bench), slice, is_whole, self.held, &mut it.own, &reference);
        if self.held.is_kept(tap) {
            let site = place.tap.last_site();
            it.own = as_kept(candidate.cache.0, site, &it.own, &due.right).unwrap_or_else(|| it.own.clone());
        }
        let record = &program.taps()[tap];
        it.own = as_the_table(self.recording, record, &it.own, &due.exact).unwrap_or_else(|| it.own.clone());
        let name = program.said(record.op);
        let (operation, judged) = self.by_size(it, &due, &name);
        let in_order = |order: &[usize]| operation.judged(&it.own.select(Axis(0), order), &due.right, &due.exact);
        let both = Both { own: &it.own, due: &due.exact, program, bench: &self.bench };
        let judged = self.orders.judged(&standing, judged, &both, &in_order, self.held, &mut self.taps);
        Ok(match self.held.beyond(tap).filter(|_| judged.report.status.agrees()) {
            Some(what) => {
                let report = TapReport { status: Status::Diverged, ..judged.report };
                Replayed { report, reason: Some(Reason::Padding(what.clone())), ..judged }
            }
            None => judged,
        })
    }

    /// Whether a slice reads rows in an order of the candidate's own beside some of the program's, or orders them.
    fn mixes_orders(&self, slice: &Slice<'_>) -> bool {
        let (taps, sorted) = (self.program().taps(), &self.orders.sorted);
        let makes_order = |known: usize| sorted.holds(taps[known].op) && !self.own_order.contains(&known);
        slice.known().any(|known| self.own_order.contains(&known))
            && (slice.ops().any(|op| sorted.begins_at(op)) || slice.known().any(makes_order))
    }

    /// What recording a tap costs, by how much right runs differ there, and what rounding costs.
    fn costs_of(&self, it: &Judged<'_>, due: &Due) -> Costs {
        let (program, candidate, place) = (self.program(), self.candidate, self.held.place(it.tap));
        let (site, record) = (place.tap.last_site(), &program.taps()[it.tap]);
        let (coarse, is_span) = (is_coarse(candidate.profile), !it.through.is_empty());
        let of_inputs = due.moved.as_ref().filter(|_| !coarse);
        let spread = due.moved.as_ref().filter(|_| candidate.is_stepped() && is_span);
        let of_inputs = of_inputs.map_or(0.0, |moved| INPUT_ROOM * distance(site, &due.exact, moved));
        // Where the program rounds to 16 bits itself, another right run has the next number of its type.
        let of_edges = if coarse && is_of_16_bits(record) { own_unit(candidate.profile).powi(2) } else { 0.0 };
        // So do tables of cosines and sines, which are in f32 where the program makes them.
        let of_tables = if coarse && multiplies_by_tables(program, &it.slice) {
            TABLE_SHARE * own_unit(candidate.profile).powi(2)
        } else {
            0.0
        };
        let stored = lost(candidate.profile, candidate.dtype(place)) + of_inputs + of_edges + of_tables;
        let spread = spread.map_or(0.0, |moved| distance(site, &due.right, moved));
        let rounding = due.narrow.as_ref().filter(|_| !is_span);
        let rounding = rounding.map(|narrow| distance(site, narrow, &due.right));
        let of_both = || NORM_AND_GAIN * distance(site, &due.exact, &due.right);
        let rounds_between = is_half(candidate.profile) && is_norm_with_gain(program, &it.slice);
        (stored, spread, rounding.or_else(|| rounds_between.then(of_both)))
    }

    /// Judges a tap by how far it is off.
    fn by_size<'n>(&mut self, it: &Judged<'_>, due: &Due, name: &'n str) -> (Operation<'n>, Replayed) {
        let (program, candidate, place) = (self.program(), self.candidate, self.held.place(it.tap));
        let (own, slice, site) = (&it.own, &it.slice, place.tap.last_site());
        let (coarse, is_span) = (is_coarse(candidate.profile), !it.through.is_empty());
        let costs = self.costs_of(it, due);
        let before = self.noise.entry(place.tap).or_insert(0.0);
        let operation =
            Operation { noise_before: *before, ..operation(place, name, candidate.profile, is_span, costs) };
        *before = before.max(costs.2.unwrap_or_else(|| distance(site, &due.exact, &due.right)));
        let judged = operation.judged(own, &due.right, &due.exact);
        // With more room it is judged again.
        let again = |operation: &Operation<'_>, has_room: bool, judged: Replayed| match has_room {
            true => operation.judged(own, &due.right, &due.exact),
            false => judged,
        };
        // A row or two may be hit less by one chance than by another.
        let few_rows = own.shape().get(site.position_axis()).is_none_or(|&rows| rows < FEW_ROWS);
        let by_chance = match judged.report.status == Status::Diverged && few_rows {
            true => of_chance((program, slice), &self.bench, self.held, candidate, &due.exact),
            false => 0.0,
        };
        let operation = Operation { stored: operation.stored + INPUT_ROOM * by_chance, ..operation };
        let judged = again(&operation, by_chance > 0.0, judged);
        // Nothing that is read need be moved for a number in between to fall to the other side of a step.
        let bench = self.rounded.as_mut().filter(|_| coarse && is_span && !judged.report.status.agrees());
        let bench = bench.and_then(|bench| bench.load(slice).ok().map(|()| &*bench));
        let of_edges = bench.map_or(0.0, |bench| of_edges((program, slice), bench, self.held, &due.right));
        let operation = Operation { spread: operation.spread.max(of_edges), ..operation };
        self.costs.insert(place, (costs.0, operation.spread, costs.2));
        let judged = again(&operation, of_edges > 0.0, judged);
        // What nearly cancels is held to the size of its terms.
        let may_cancel = judged.report.status == Status::Diverged && !is_span;
        let value = |tap: usize| self.held.value(tap);
        let condition = may_cancel.then(|| condition(slice, program.ops(), &self.bench, &value)).flatten();
        let times = condition.as_ref().and_then(|condition| condition.times(site));
        let operation = Operation { condition: times.unwrap_or(1.0).max(1.0), ..operation };
        let judged = again(&operation, operation.condition > 1.0, judged);
        let judged = match &condition {
            Some(condition) if it.part.is_none() && judged.is_for(is_of_a_row) => {
                without_cancelling(condition, &operation, [own, &due.right, &due.exact], judged)
            }
            _ => judged,
        };
        let is_rounding = !coarse && self.lockstep.is_beside_one(it.tap, own, &due.exact);
        let is_off = judged.report.status == Status::Diverged;
        let judged = rounded_if(is_rounding && is_off, judged);
        // No engine is held to less than the reference's own arithmetic leaves.
        let of_the_reference = match judged.report.status {
            Status::Diverged => self.off_by_itself(it).unwrap_or(0.0),
            _ => 0.0,
        };
        let operation = Operation { stored: operation.stored + REFERENCE_ROOM * of_the_reference, ..operation };
        let judged = again(&operation, of_the_reference > 0.0, judged);
        (operation, judged)
    }

    /// How far the reference's own value of a tap is off what comes of the reference's own values above it.
    fn off_by_itself(&mut self, it: &Judged<'_>) -> Option<f64> {
        let candidate = self.candidate;
        if self.is_same_run || it.part.is_some() || !candidate.is_by_the_reference || is_coarse(candidate.profile) {
            return None;
        }
        let program = self.program();
        let reference = |tap: usize| of_the_reference(program, candidate, tap, self.places[tap]);
        let own = array(&reference(it.tap)?);
        let above: HashMap<usize, Tensor<'static>> =
            it.slice.known().map(|tap| Some((tap, reference(tap)?))).collect::<Option<_>>()?;
        self.bench.load(&it.slice).ok()?;
        let made = it.slice.evaluate(&self.bench, &|tap| above.get(&tap).map(Tensor::view), &[]).ok()?;
        let exact = array(&made);
        let off = distance(self.places[it.tap].tap.last_site(), &exact, &own);
        // More is no rounding: the program runs with the candidate's choices, and those are not the reference's.
        (exact.shape() == own.shape() && off <= MOST_OF_THE_REFERENCE).then_some(off)
    }

    /// A wrong tap is not judged where nobody knows what it reads: other experts, positions that are not held, no numbers.
    fn as_what_it_reads_allows(&self, it: &Judged<'_>, judged: Replayed) -> Replayed {
        if judged.report.status != Status::Diverged {
            return judged;
        }
        let (program, slice) = (self.program(), &it.slice);
        let of_input = |tap: Tap, why: UnfitInput| self.not_judged(it.tap, Reason::Input { tap, why });
        if let Some(choice) = slice.ops().find_map(|op| self.other_choices.get(&op)) {
            let why = format!("it takes the values of other experts than the reference does, as {choice} says");
            return self.not_judged(it.tap, Reason::NotEvaluated(why));
        }
        // Of a tap that is wrong at the positions that the candidate holds, nobody knows the others.
        if let Some(at) = on_the_way(program, slice).into_iter().find(|at| self.wrong_parts.contains(at)) {
            return of_input(self.held.place(at).tap, UnfitInput::Partial);
        }
        // What is computed around a tap that holds no numbers is not what was made of it.
        match no_numbers(program, self.held, slice) {
            Some(tap) => of_input(tap, UnfitInput::NotFinite),
            None => judged,
        }
    }

    /// Takes note of how a tap was judged, for those behind it; `whole`: what is due at all positions, where some are held.
    fn taken_note_of(&mut self, it: Judged<'_>, judged: Replayed, whole: Option<ArrayD<f64>>) -> Replayed {
        let (program, tap, slice) = (self.program(), it.tap, &it.slice);
        let record = &program.taps()[tap];
        let is_off = judged.report.status == Status::Diverged;
        if record.view.dtype.kind() == Kind::Int && is_off {
            self.other_choices.insert(record.op, self.held.place(tap));
        }
        if let Some(whole) = whole {
            self.held.complete(tap, &whole);
        }
        let positions = self.held.positions(tap).map(|part| part.rows.clone());
        let agrees = judged.report.status.agrees();
        self.wrong_parts.extend((positions.is_some() && !agrees).then_some(tap));
        self.own_order.extend((it.is_in_own_order && self.orders.sorted.holds(record.op)).then_some(tap));
        if !agrees {
            let open: Vec<usize> = self.open_choices(slice).collect();
            self.missed.extend(open);
        }
        let report = TapReport { positions, ..judged.report };
        let (stretch, fit) = match is_off {
            true => (stretch(program, slice), sum_of(program, self.held, slice)),
            false => (None, None),
        };
        let takes_up = taken_up(program, self.held, slice);
        Replayed { report, stretch, fit, takes_up, from: it.from, through: it.through, ..judged }
    }

    /// What all taps came to, and what their readers told of layouts.
    pub(super) fn finished(mut self, routing: Vec<Routing>) -> Result<(Replays, Decided), ReplayError> {
        // Where all that is made of a choice is right, more of it was recorded than is used.
        for (replayed, tap) in self.taps.iter_mut().zip(&self.numbers) {
            let op = self.recording.program.taps()[*tap].op;
            if matches!(replayed.reason, Some(Reason::OtherCount { .. })) && !self.missed.contains(&op) {
                let blank = unchecked(replayed.report.place, replayed.report.op.clone());
                *replayed = Replayed { reason: Some(Reason::OtherExtent), ..blank };
            }
        }
        let (outside, not_numbers) = outside(self.candidate, self.held)?;
        self.taps.extend(outside);
        let warnings = self.lockstep.warnings().into_iter().chain(not_numbers).chain(self.layouts.notes()).collect();
        self.layouts.doubt_unconfirmed(&mut self.taps);
        let told = std::mem::take(&mut self.layouts.told);
        let (cache, said_by) = self.candidate.cache;
        let replay = Replay { taps: self.taps, routing, warnings, cache, cache_is_assumed: said_by.is_assumed() };
        Ok((Replays { replay, taps: self.numbers, noise: self.costs }, told))
    }
}

/// Whether a slice reads the ids of tokens.
fn reads_tokens(program: &Program, slice: &Slice<'_>) -> bool {
    let mut read = slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
    read.any(|view| program.is_token_input(view.buffer))
}

pub(super) fn replayed(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &mut Held,
    (undecided, counts): (&HashSet<Place>, &HashMap<Place, [usize; 2]>),
    decided: &Decided,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Replays, Decided), ReplayError> {
    let count = recording.program.taps().len();
    let mut judge = Judge::new((recording, candidate), held, (undecided, counts), decided);
    let mut routing = Vec::new();
    while let Some(tap) = judge.lockstep.next_tap() {
        progress(judge.taps.len(), count);
        routing.extend(judge.lockstep.routing(tap, judge.held, candidate)?);
        judge.settle_places(tap)?;
        judge.read_layout(tap)?;
        let (replayed, goes_on) = judge.replayed(tap)?;
        judge.numbers.push(tap);
        judge.taps.push(replayed);
        if goes_on {
            judge.lockstep.hold(tap, judge.held)?;
        }
    }
    let (mut replays, told) = judge.finished(routing)?;
    taken_back::leave_out(recording, candidate, held, &mut replays)?;
    blame_unmasked_padding(candidate.padding, &mut replays.replay.taps);
    Ok((replays, told))
}

/// Decides the layout of what a tap reads that does not come out: that of which it does.
fn told_by_a_reader(
    (program, bench, rounded): (&Program, &Bench<'_>, Option<&Bench<'_>>),
    held: &Held,
    reader: usize,
    layouts: &mut Layouts<'_>,
    own: Option<&ArrayD<f64>>,
    is_right: &dyn Fn(&Due, &ArrayD<f64>) -> bool,
) -> Result<(), ReplayError> {
    let slice = held.slice(program, reader);
    let doubtful = slice.known().filter(|&known| layouts.is_doubtful(held.place(known)));
    // What agrees with the reference is not doubted for a reader that reads what does not.
    let (claimed, open): (Vec<usize>, Vec<usize>) = doubtful.partition(|&known| layouts.is_claimed(held.place(known)));
    let doubtful = if open.is_empty() { claimed } else { open };
    for read in doubtful {
        let (tap, place) = (&program.taps()[read], held.place(read));
        for (layout, values) in layouts.alternatives(place, &tap.view.shape)? {
            let Some(values) = floats(values) else { continue };
            let value = |known: usize| match known == read {
                true => Some(values.view()),
                false => held.readable(known).map(Tensor::view),
            };
            let Ok(due) = Due::of_values((program, &slice), bench, rounded, held, &value) else { continue };
            let (is_wrong_beyond, is_right) = (false, &|own: &ArrayD<f64>| is_right(&due, own));
            let reading = Reading { place: held.place(reader), due: &due.exact, own, is_wrong_beyond, is_right };
            if layouts.comes_out(&reading)? {
                layouts.told.insert(place, layout);
                break;
            }
        }
    }
    Ok(())
}

/// Of a sum of two recorded tensors, what was added instead.
fn sum_of(program: &Program, held: &Held, slice: &Slice<'_>) -> Option<Fit> {
    let [op] = slice.ops().collect::<Vec<_>>()[..] else { return None };
    let mut read = program.ops()[op].operands.iter().flat_map(Operand::views);
    let known = |view: &View| slice.known().find(|&tap| program.taps()[tap].view.buffer == view.buffer);
    let (stream, branch) = (known(read.next()?)?, known(read.next()?)?);
    let (place, sum) = (held.place(slice.target()), held.get(slice.target()).map(array)?);
    let value = |tap: Tap| {
        let at = (0..program.taps().len()).find(|&at| held.place(at) == Place { tap, ..place })?;
        held.readable(at).map(array)
    };
    let is_sum = program.ops()[op].base() == "add" && read.next().is_none();
    is_sum.then(|| added(place.tap, [stream, branch].map(|tap| held.place(tap).tap), &sum, &value))?
}

/// What the operations of a slice read that nothing records: what an engine keeps from an earlier pass, and what it was fed.
fn taken_up(program: &Program, held: &Held, slice: &Slice<'_>) -> Option<&'static str> {
    let step = held.place(slice.target()).step;
    let is_cached = |known: usize| held.place(known).step < step && held.place(known).tap.last_site().is_attended();
    let of_operation = |op: usize| match program.ops()[op].base() {
        "conv1d" | "ggml.SSM_CONV" => Some("the state of a convolution of an earlier pass"),
        "cumsum" | "ggml.CUMSUM" | "ggml.SSM_SCAN" | "ggml.RWKV_WKV6" | "ggml.RWKV_WKV7" => {
            Some("the state of an SSM, or a running sum, of an earlier pass")
        }
        _ => None,
    };
    let state = slice.ops().find_map(of_operation).filter(|_| step > 0);
    let read = || slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
    let is_fed = |view: &View| {
        let fed = program.is_activation(view.buffer) && program.inputs().contains_key(&view.buffer);
        fed && view.dtype.kind() == Kind::Float
    };
    let fed = || read().any(is_fed).then_some("what the model was fed");
    state.or_else(|| slice.known().any(is_cached).then_some("the K/V cache of an earlier pass")).or_else(fed)
}

/// What the candidate recorded and the program does not have: nothing is due there. With it a warning, where some of it is no number.
fn outside(candidate: &Candidate<'_>, held: &Held) -> Result<(Vec<Replayed>, Option<String>), ReplayError> {
    let (mut taps, mut not_numbers, known) = (Vec::new(), Vec::new(), held.places());
    for report in candidate.taps.iter().filter(|report| !known.contains(&report.place)) {
        let Place { tap, step } = report.place;
        let Some(entry) = candidate.dump.entry(tap, step) else { continue };
        if candidate.dump.read(&entry)?.values().to_f64().iter().any(|x| x.is_nan()) {
            not_numbers.push(report.place.to_string());
        }
        let is_of_reference = candidate.values.reference(report.place)?.is_some();
        let reason = Reason::NotOfTheProgram { is_of_reference };
        taps.push(Replayed { reason: Some(reason), ..unchecked(report.place, report.op.clone()) });
    }
    let more = not_numbers.len().saturating_sub(1);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let said = |first: &String| format!("NaN in what is not in the program, and was not checked: {first}{more}");
    let warning = not_numbers.first().map(said);
    Ok((taps, warning))
}

/// Whether the last tap that was recorded of each step is the reference's own value.
fn is_right_at_every_end(program: &Program, held: &Held, reports: &HashMap<Place, &TapReport>) -> bool {
    let recorded = (0..program.taps().len()).filter(|&tap| held.is_recorded(tap));
    let ends: HashMap<usize, Place> = recorded.map(|tap| (program.taps()[tap].step, held.place(tap))).collect();
    ends.values().all(|place| reports.get(place).is_some_and(|report| report.status.agrees()))
}

/// A tap that cannot be computed, as the comparison with the reference's own value judged it: it says nothing where an input differs as well.
fn beside_the_reference(
    blank: Replayed,
    why: String,
    report: Option<&TapReport>,
    is_right_at_the_end: bool,
) -> Replayed {
    let reason = match report.map(|report| report.status) {
        Some(status) if status.agrees() => None,
        Some(Status::Diverged) => Some(Reason::NotTheReferences(why)),
        _ if is_right_at_the_end => return Replayed { reason: Some(Reason::NotEvaluated(why)), ..blank },
        _ => return Replayed { reason: Some(Reason::NotComputed(why)), ..blank },
    };
    let as_compared = |report: &TapReport| TapReport { op: blank.report.op.clone(), reason: None, ..report.clone() };
    Replayed { reason, ..report.map_or_else(|| blank.clone(), |report| Replayed::of(as_compared(report))) }
}

/// The reference's own value of a tap, as the program takes it.
fn of_the_reference(program: &Program, candidate: &Candidate<'_>, tap: usize, place: Place) -> Option<Tensor<'static>> {
    tensor(&program.taps()[tap], candidate.values.reference(place).ok()??)
}

/// What comes out at a tap of the candidate's own values.
fn computed(bench: &Bench<'_>, program: &Program, tap: usize, held: &Held) -> Option<ArrayD<f64>> {
    held.made(bench, &held.slice(program, tap), &[])
}

/// Whether a tap mixes positions of another of which the candidate holds some alone: other values at the rest change it.
fn mixes(bench: &Bench<'_>, program: &Program, tap: usize, other: usize, held: &Held) -> bool {
    let slice = held.slice(program, tap);
    let changed = held.with_other_rows(other);
    let made = |changed: Option<&Tensor<'static>>| {
        let value = |known: usize| changed.filter(|_| known == other).map(Tensor::view).or_else(|| held.value(known));
        let all = slice.evaluate(bench, &value, &[]).ok().map(|value| array(&value))?;
        Some(held.at_its_positions(tap, all))
    };
    made(None) != made(changed.as_ref())
}

fn unchecked(place: Place, op: String) -> Replayed {
    Replayed::of(TapReport::unchecked(place, op))
}

/// The first of them where the candidate holds NaN or infinities.
fn no_numbers(program: &Program, held: &Held, slice: &Slice<'_>) -> Option<Tap> {
    let is_number = |tap: usize, own| can_be_read(held.place(tap).tap.last_site(), &array(own));
    let made = on_the_way(program, slice).into_iter();
    made.filter(|&tap| held.get(tap).is_some_and(|own| !is_number(tap, own))).map(|tap| held.place(tap).tap).next()
}
