//! Which operations are wrong in themselves? The program is run once, and takes the candidate's values at every tap that the candidate holds:
//! so each tap is computed from the candidate's own values above it.

use std::collections::{BTreeSet, HashMap, HashSet};

use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{Difference, Place, Status, TapReport, margin_of_best};
use firstdiff_model::{Cache, Profile, Storage};
use firstdiff_program::{
    Arithmetic, Bench, DType as ProgramType, EvaluateError, Evaluator, Kind, Operand, Program, ProgramTap, Slice,
    Tensor, Values, View,
};
use firstdiff_trace::{DType, Site, Tap, to_bf16, to_f16};
use ndarray::{ArrayD, Axis};

use crate::explain::Effort;
use crate::explain::quantised::{OtherArithmetic, recognised};
use crate::mistakes::precision::PRECISION;
use crate::program::arithmetic::HeldProducts;
use crate::program::condition::{Condition, condition};
use crate::program::findings::stretch;
use crate::program::held::{Held, Part, array, moved, tensor};
use crate::program::orders::{Both, Orders};
use crate::program::routing::{Routed, routing};
use crate::program::{Candidate, Recording, taken_back};
use crate::replay::kept::as_kept;
use crate::replay::operation::{Operation, is_coarse, loses, lost, unit_of};
use crate::replay::padding::blame_unmasked_padding;
use crate::replay::reason::{Reason, Unfit, UnfitInput};
use crate::replay::right::{distance, tolerance};
use crate::replay::{Replay, ReplayError, Replayed, Routing, can_be_read, leave_hidden_rows};
use crate::tolerance::replay::{BESIDE_ONE, CHOICE_ROOM, INPUT_ROOM, TABLE_SHARE};

/// Judges every tap that the candidate recorded. `progress` is told how many of how many taps are done.
///
/// # Errors
/// When a file or a weight cannot be read.
pub fn replay(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replay, ReplayError> {
    Ok(ProgramReplay::run(recording, candidate, progress)?.replays.replay)
}

/// A candidate's values in the reference's program, with the experts that it chose, and how each of its taps is judged.
pub(crate) struct ProgramReplay {
    /// `None` where the recorded one serves.
    program: Option<Program>,
    pub(crate) held: Held,
    pub(crate) replays: Replays,
    /// The type of cache that it was judged by.
    pub(crate) cache: Cache,
}

impl ProgramReplay {
    /// Judges it with the type of cache that is told, and where taps are wrong then, without: a narrow cache is what an engine may have, not what it
    /// must have. Of the two, that by which fewer taps are wrong.
    ///
    /// # Errors
    /// When a file or a weight cannot be read.
    pub(crate) fn run(
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ProgramReplay, ReplayError> {
        let judged = ProgramReplay::once(recording, candidate, progress)?;
        let wrong = judged.replays.wrong().count();
        if wrong == 0 || candidate.cache.0 == Cache::F32 {
            return Ok(judged);
        }
        let wide = Candidate { cache: (Cache::F32, false), ..*candidate };
        let mut other = ProgramReplay::once(recording, &wide, progress)?;
        (other.replays.replay.cache, other.replays.replay.cache_is_assumed) = candidate.cache;
        Ok(if other.replays.wrong().count() < wrong { other } else { judged })
    }

    fn once(
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ProgramReplay, ReplayError> {
        let Routed { program, mut held, undecided, counts, notes } = Routed::of(recording, candidate)?;
        let routed = Recording { program: program.as_ref().unwrap_or(recording.program), ..*recording };
        let mut replays = replayed(&routed, candidate, &mut held, (&undecided, &counts), progress)?;
        replays.replay.warnings.extend(notes);
        Ok(ProgramReplay { program, held, replays, cache: candidate.cache.0 })
    }

    /// What a run looks like of which all products with weights are off alike.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn other_arithmetic(
        &mut self,
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        effort: &Effort,
    ) -> Result<Option<OtherArithmetic>, ReplayError> {
        let program = self.program.as_ref().unwrap_or(recording.program);
        let exact = Bench::new(program, candidate.exact(), recording.weights);
        let taps = self.replays.taps.iter().map(|&tap| (self.held.place(tap), tap)).collect();
        let mut products = HeldProducts { program, held: &self.held, taps, exact, profile: candidate.profile };
        match effort.tries(&PRECISION) {
            true => recognised(&mut products, &mut self.replays.replay),
            false => Ok(None),
        }
    }

    /// What it was judged by.
    pub(crate) fn recording<'a>(&'a self, recording: &Recording<'a>) -> Recording<'a> {
        Recording { program: self.program.as_ref().unwrap_or(recording.program), ..*recording }
    }
}

/// A replay, and by what its taps were judged.
pub(crate) struct Replays {
    pub(crate) replay: Replay,
    /// For each tap of the replay its index in the program.
    pub(crate) taps: Vec<usize>,
    /// What recording costs a place, and by how much right runs differ there.
    noise: HashMap<Place, Costs>,
}

impl Replays {
    /// How a tap was judged.
    pub(crate) fn operation<'t>(&self, tap: &'t Replayed, profile: Profile) -> Operation<'t> {
        let noise = self.noise.get(&tap.report.place).copied().unwrap_or_default();
        operation(tap.report.place, &tap.report.op, profile, !tap.through.is_empty(), noise)
    }
}

/// What recording a place costs, by how much right runs differ there, and what rounding costs where that was measured.
type Costs = (f64, f64, Option<f64>);

/// How a tap is judged, by what recording it costs and by how much right runs of it differ.
fn operation(
    place: Place,
    name: &str,
    profile: Profile,
    is_span: bool,
    (stored, spread, noise): Costs,
) -> Operation<'_> {
    let (site, is_softmax) = (place.tap.last_site(), place.tap.site == Site::Probs);
    let (noise_before, condition) = (0.0, 1.0);
    Operation {
        place,
        site,
        name,
        profile,
        is_softmax,
        is_span,
        is_recorded: true,
        noise,
        noise_before,
        stored,
        spread,
        condition,
    }
}

fn replayed(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &mut Held,
    (undecided, counts): (&HashSet<Place>, &HashMap<Place, [usize; 2]>),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replays, ReplayError> {
    let program = recording.program;
    let (mut numbers, mut noise_of) = (Vec::new(), HashMap::new());
    let mut lockstep = Lockstep::new(recording, candidate, held);
    let reports: HashMap<Place, &TapReport> = candidate.taps.iter().map(|tap| (tap.place, tap)).collect();
    let mut noise: HashMap<Tap, f64> = HashMap::new();
    let mut taps = Vec::new();
    let (mut routing, mut orders) = (Vec::new(), Orders::of(program, held));
    // Taps in the order of a sort, of which nothing could be computed that tells which: the candidate's, and not the program's.
    let mut own_order: BTreeSet<usize> = BTreeSet::new();
    let count = program.taps().len();
    let places: Vec<Place> = (0..count).map(|tap| held.place(tap)).collect();
    let is_same_run = candidate.values.is_of_one_dump();
    let is_right_at_the_end = !is_same_run && is_right_at_every_end(program, held, &reports);
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
    let open_at: HashMap<usize, String> = program.choices().filter_map(unknown).collect();
    // Of these what something reads that is not right by the reference's own value.
    let mut missed: BTreeSet<usize> = BTreeSet::new();
    let bench = Bench::new(program, candidate.exact(), recording.weights);
    // Operations that chose otherwise: the values that come with a choice are not those of the candidate's.
    let mut other_choices: HashMap<usize, Place> = HashMap::new();
    // Taps that are wrong, or could not be judged, where not all positions are held.
    let mut wrong_parts: BTreeSet<usize> = BTreeSet::new();
    while let Some(tap) = lockstep.next_tap() {
        progress(taps.len(), count);
        numbers.push(tap);
        let (place, record) = (held.place(tap), &program.taps()[tap]);
        let name = program.said(record.op);
        routing.extend(lockstep.routing(tap, held, candidate)?);
        if let Some(choice) = orders.places.open(tap) {
            let due = match choice == tap {
                true => lockstep.exact.value(tap)?.map(|value| array(&value)),
                // What stands by its places comes before it.
                false => computed(&bench, program, choice, held),
            };
            let reference = candidate.values.reference(held.place(choice))?;
            orders.places.settle(choice, due.as_ref(), reference.as_deref(), held);
        }
        let part = held.part(tap).cloned();
        let own = held.get(tap).map(array).or_else(|| part.as_ref().map(|part| part.values.clone()));
        let Some(mut own) = own else {
            if let Some(&[own, due]) = counts.get(&place) {
                let report = TapReport { status: Status::Diverged, ..TapReport::unchecked(place, name) };
                let reason = Some(Reason::OtherCount { own, due });
                taps.push(Replayed { reason, ..Replayed::of(report) });
                continue;
            }
            let reason = match reports.get(&place) {
                _ if held.is_unread(tap) => {
                    Reason::NotEvaluated("nothing shows in which of several orders its rows stand".to_owned())
                }
                _ if !std::ptr::eq(candidate.recorded, candidate.dump)
                    && candidate.dump.entry(place.tap, place.step).is_none()
                    && candidate.recorded.entries().iter().any(|entry| entry.tap == place.tap) =>
                {
                    Reason::NotEvaluated(
                        "was recorded in other steps, of which nothing whole could be joined".to_owned(),
                    )
                }
                None => Reason::NotRecorded,
                Some(report) if report.positions.is_some() => Reason::Unfit(Unfit::Partial),
                Some(report) => report.why().map_or(Reason::OtherExtent, Reason::NotEvaluated),
            };
            taps.push(Replayed { reason: Some(reason), ..unchecked(place, name) });
            continue;
        };
        let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
        let (from, through) = (taps_of(held, slice.known()), between(program, held, &slice));
        let makes_order = |known: usize| orders.sorted.holds(program.taps()[known].op) && !own_order.contains(&known);
        let is_mixed = slice.known().any(|known| own_order.contains(&known))
            && (slice.ops().any(|op| orders.sorted.begins_at(op)) || slice.known().any(makes_order));
        let reads_tokens = || {
            let read = slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
            read.into_iter().any(|view| program.is_token_input(view.buffer))
        };
        if !candidate.are_tokens_known && reads_tokens() {
            let reason = Reason::NoTokenOfStep(place.step);
            taps.push(Replayed { reason: Some(reason), ..unchecked(place, name) });
            lockstep.hold(tap, held)?;
            continue;
        }
        let open = slice.ops().find_map(|op| open_at.get(&op));
        let due = match open {
            Some(why) => Err(why.clone()),
            None => lockstep.due(tap)?,
        };
        let whole = due.as_ref().ok().filter(|_| part.is_some()).map(|due| due.right.clone());
        let due = due.map(|due| if let Some(part) = &part { due.of_rows(part) } else { due });
        let scores = slice.known().find(|&known| held.place(known).tap.last_site() == Site::Scores);
        let scores = scores.filter(|_| place.tap.last_site() == Site::Probs).and_then(|scores| held.readable(scores));
        let due =
            due.map(|due| if let Some(scores) = scores { due.beside_hidden_rows(&own, &array(scores)) } else { due });
        if due.is_err() && held.is_in_own_order(tap) {
            held.close(tap);
        }
        // What reads more than the program has cannot be computed by it.
        let reads_beyond = slice.known().any(|known| held.beyond(known).is_some());
        let is_in_own_order = due.is_err() || slice.known().any(|known| own_order.contains(&known));
        let judged = match due {
            Err(why) => {
                // Where rounding chooses other experts, the reference's value is not what is due.
                let is_decided = open.is_none() || counts.is_empty() && !is_coarse(candidate.profile);
                let serves = |report: &&TapReport| !is_same_run && (is_decided || report.status.agrees());
                let report = reports.get(&place).copied().filter(serves);
                beside_the_reference(unchecked(place, name), why, report, is_right_at_the_end)
            }
            Ok(_) if reads_beyond => {
                let why = "it reads what the reference's run does not have".to_owned();
                Replayed { reason: Some(Reason::NotEvaluated(why)), ..unchecked(place, name) }
            }
            Ok(_) if is_mixed => Replayed { reason: Some(Reason::OrderUnknown), ..unchecked(place, name) },
            Ok(due) if record.view.dtype.kind() == Kind::Int => {
                chosen(unchecked(place, name), &own, &due, own_unit(candidate.profile), orders.places.is_moved(tap))
            }
            Ok(due) => {
                let is_whole = part.is_none() && !is_in_own_order;
                let reference =
                    |tap: usize| tensor(&program.taps()[tap], candidate.values.reference(places[tap]).ok()??);
                let standing = orders.settle((program, &bench), &slice, is_whole, held, &mut own, &reference);
                let site = place.tap.last_site();
                if held.is_kept(tap) {
                    own = as_kept(candidate.cache.0, site, &own, &due.right).unwrap_or(own);
                }
                own = as_the_table(recording, record, &own, &due.exact).unwrap_or(own);
                let (coarse, is_span) = (is_coarse(candidate.profile), !through.is_empty());
                let of_inputs = due.moved.as_ref().filter(|_| !coarse);
                let spread = due.moved.as_ref().filter(|_| candidate.is_stepped() && is_span);
                let of_inputs = of_inputs.map_or(0.0, |moved| INPUT_ROOM * distance(site, &due.exact, moved));
                // Where the program rounds to 16 bits itself, another right run has the next number of its type.
                let is_half = is_of_16_bits(record);
                let of_edges = if coarse && is_half { own_unit(candidate.profile).powi(2) } else { 0.0 };
                // So do tables of cosines and sines, which are in f32 where the program makes them.
                let of_tables = if coarse && multiplies_by_tables(program, &slice) {
                    TABLE_SHARE * own_unit(candidate.profile).powi(2)
                } else {
                    0.0
                };
                let stored = lost(candidate.profile, candidate.dtype(place)) + of_inputs + of_edges + of_tables;
                let spread = spread.map_or(0.0, |moved| distance(site, &due.right, moved));
                let rounding = due.narrow.as_ref().filter(|_| !is_span);
                let rounding = rounding.map(|narrow| distance(site, narrow, &due.right));
                let costs = (stored, spread, rounding);
                noise_of.insert(place, costs);
                let before = noise.entry(place.tap).or_insert(0.0);
                let operation =
                    Operation { noise_before: *before, ..operation(place, &name, candidate.profile, is_span, costs) };
                *before = before.max(rounding.unwrap_or_else(|| distance(site, &due.exact, &due.right)));
                let judged = operation.judged(&own, &due.right, &due.exact);
                // What nearly cancels is held to the size of its terms.
                let again = judged.report.status == Status::Diverged && !is_span;
                let condition = again
                    .then(|| condition(&slice, program.ops(), &bench, &|tap| held.readable(tap).map(Tensor::view)))
                    .flatten();
                let times = condition.as_ref().and_then(|condition| condition.times(site));
                let operation = Operation { condition: times.unwrap_or(1.0).max(1.0), ..operation };
                let judged = match operation.condition > 1.0 {
                    true => operation.judged(&own, &due.right, &due.exact),
                    false => judged,
                };
                let judged = match &condition {
                    Some(condition) if part.is_none() && judged.is_for(is_of_a_row) => {
                        without_cancelling(condition, &operation, [&own, &due.right, &due.exact], judged)
                    }
                    _ => judged,
                };
                let is_rounding = !coarse && lockstep.is_beside_one(tap, &own, &due.exact);
                let judged = rounded_if(is_rounding && judged.report.status == Status::Diverged, judged);
                let in_order = |order: &[usize]| operation.judged(&own.select(Axis(0), order), &due.right, &due.exact);
                let both = Both { own: &own, due: &due.exact, program, bench: &bench };
                let judged = orders.judged(&standing, judged, &both, &in_order, held, &mut taps);
                match held.beyond(tap).filter(|_| judged.report.status.agrees()) {
                    Some(what) => {
                        let report = TapReport { status: Status::Diverged, ..judged.report };
                        Replayed { report, reason: Some(Reason::Padding(what.clone())), ..judged }
                    }
                    None => judged,
                }
            }
        };
        let judged = match slice.ops().find_map(|op| other_choices.get(&op)) {
            Some(choice) if judged.report.status == Status::Diverged => {
                let why = format!("it takes the values of other experts than the reference does, as {choice} says");
                Replayed { reason: Some(Reason::NotEvaluated(why)), ..unchecked(place, program.said(record.op)) }
            }
            _ => judged,
        };
        // Of a tap that is wrong at the positions that the candidate holds, nobody knows the others.
        let is_off = |at: &usize| wrong_parts.contains(at);
        let judged = match on_the_way(program, &slice).into_iter().find(is_off) {
            Some(at) if judged.report.status == Status::Diverged => {
                let reason = Reason::Input { tap: held.place(at).tap, why: Unfit::Partial.into() };
                Replayed { reason: Some(reason), ..unchecked(place, program.said(record.op)) }
            }
            _ => judged,
        };
        // What is computed around a tap that holds no numbers is not what was made of it.
        let judged = match no_numbers(program, held, &slice).filter(|_| judged.report.status == Status::Diverged) {
            Some(tap) => {
                let reason = Reason::Input { tap, why: UnfitInput::NotFinite };
                Replayed { reason: Some(reason), ..unchecked(place, program.said(record.op)) }
            }
            None => judged,
        };
        if record.view.dtype.kind() == Kind::Int && judged.report.status == Status::Diverged {
            other_choices.insert(record.op, place);
        }
        if let Some(whole) = whole {
            held.complete(tap, &whole);
        }
        let positions = held.positions(tap).map(|part| part.rows.clone());
        wrong_parts.extend((positions.is_some() && !judged.report.status.agrees()).then_some(tap));
        let report = TapReport { positions, ..judged.report };
        let judged = Replayed { report, ..judged };
        own_order.extend((is_in_own_order && orders.sorted.holds(record.op)).then_some(tap));
        if !judged.report.status.agrees() {
            missed.extend(slice.ops().filter(|op| open_at.contains_key(op)));
        }
        let stretch = if judged.report.status == Status::Diverged { stretch(program, &slice) } else { None };
        taps.push(Replayed { from, through, takes_up: taken_up(program, held, &slice), stretch, ..judged });
        lockstep.hold(tap, held)?;
    }
    // Where all that is made of a choice is right, more of it was recorded than is used.
    for (replayed, tap) in taps.iter_mut().zip(&numbers) {
        if matches!(replayed.reason, Some(Reason::OtherCount { .. })) && !missed.contains(&program.taps()[*tap].op) {
            let blank = unchecked(replayed.report.place, replayed.report.op.clone());
            *replayed = Replayed { reason: Some(Reason::OtherExtent), ..blank };
        }
    }
    let (outside, not_numbers) = outside(candidate, held)?;
    taps.extend(outside);
    let warnings = lockstep.warnings().into_iter().chain(not_numbers).collect();
    let (cache, cache_is_assumed) = candidate.cache;
    let replay = Replay { taps, routing, warnings, order_is_open: false, cache, cache_is_assumed };
    let mut replays = Replays { replay, taps: numbers, noise: noise_of };
    taken_back::leave_out(recording, candidate, held, &mut replays)?;
    blame_unmasked_padding(candidate.padding, &mut replays.replay.taps);
    Ok(replays)
}

/// Whether a slice multiplies activations by a table that depends on none, as a rotation does.
fn multiplies_by_tables(program: &Program, slice: &Slice<'_>) -> bool {
    let is_table = |view: &View| program.is_table(view) && view.dtype.kind() == Kind::Float;
    slice.ops().map(|op| &program.ops()[op]).filter(|op| op.base() == "mul").any(|op| {
        let reads = || op.operands.iter().flat_map(Operand::views);
        reads().any(is_table) && reads().any(|view| program.is_activation(view.buffer))
    })
}

/// Rows of a table of 16 bits that the candidate holds with more digits: rounded, where they are the table's then.
fn as_the_table(
    recording: &Recording<'_>,
    record: &ProgramTap,
    own: &ArrayD<f64>,
    due: &ArrayD<f64>,
) -> Option<ArrayD<f64>> {
    let op = &recording.program.ops()[record.op];
    let is_lookup = op.base() == "embedding";
    let mut views = op.operands.iter().filter(|_| is_lookup).flat_map(Operand::views);
    let table = views.find_map(|view| recording.program.weights().get(&view.buffer))?;
    let rounded = match recording.weights.view(table)?.storage() {
        Storage::F16 => own.mapv(|x| to_f16(x).to_f64()),
        Storage::BF16 => own.mapv(|x| to_bf16(x).to_f64()),
        _ => return None,
    };
    (rounded == *due).then_some(rounded)
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

/// What comes out at a tap of the candidate's own values.
fn computed(bench: &Bench<'_>, program: &Program, tap: usize, held: &Held) -> Option<ArrayD<f64>> {
    let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
    let value = |tap: usize| held.readable(tap).map(Tensor::view);
    slice.evaluate(bench, &value, &[]).ok().map(|value| array(&value))
}

/// What is due at a tap.
#[derive(Clone)]
struct Due {
    /// In the profile's arithmetic.
    right: ArrayD<f64>,
    exact: ArrayD<f64>,
    /// From inputs as another right recording would have them, where that differs.
    moved: Option<ArrayD<f64>>,
    /// As the program's own types round the exact value, where they do.
    narrow: Option<ArrayD<f64>>,
    /// What is chosen among, where the tap says which.
    choices: Option<ArrayD<f64>>,
}

impl Due {
    /// The same, with the candidate's own where every key is masked.
    fn beside_hidden_rows(mut self, own: &ArrayD<f64>, scores: &ArrayD<f64>) -> Due {
        let all = [&mut self.right, &mut self.exact].into_iter().chain(&mut self.moved).chain(&mut self.narrow);
        all.for_each(|values| leave_hidden_rows(values, own, scores, |x| x));
        self
    }

    /// The same of some rows.
    fn of_rows(&self, part: &Part) -> Due {
        let picked = |all: &ArrayD<f64>| part.rows_of(all);
        Due {
            right: picked(&self.right),
            exact: picked(&self.exact),
            moved: self.moved.as_ref().map(picked),
            narrow: self.narrow.as_ref().map(picked),
            choices: None,
        }
    }
}

/// The same program in several arithmetics, side by side.
struct Lockstep<'a> {
    program: &'a Program,
    exact: Evaluator<'a>,
    /// In the profile's arithmetic; `None` where that is f64.
    rounded: Option<Evaluator<'a>>,
    /// On values that were moved by half a unit of rounding.
    moved: Option<Evaluator<'a>>,
    /// As the program's own types round, where those are of 16 bits and the exact values are not.
    narrow: Option<Evaluator<'a>>,
    /// The unit of rounding of each tap, where that counts.
    units: HashMap<usize, f64>,
}

impl<'a> Lockstep<'a> {
    fn new(recording: &Recording<'a>, candidate: &Candidate<'_>, held: &Held) -> Lockstep<'a> {
        let Recording { program, weights } = *recording;
        let evaluator = |arithmetic| Evaluator::new(program, arithmetic, weights);
        let (profile, coarse) = (candidate.profile, is_coarse(candidate.profile));
        let mut units = HashMap::new();
        for number in 0..program.taps().len() {
            let dtype = candidate.dtype(held.place(number));
            let recorded = if loses(profile, dtype) { unit_of(dtype) } else { 0.0 };
            let unit = if candidate.is_stepped() { own_unit(profile).max(recorded) } else { recorded };
            units.extend((unit > 0.0).then_some((number, unit)));
        }
        let rounded = candidate.arithmetic();
        let second = rounded.filter(|_| coarse).unwrap_or(Arithmetic::F64);
        Lockstep {
            program,
            exact: evaluator(candidate.exact()),
            rounded: rounded.map(evaluator),
            moved: (!units.is_empty()).then(|| evaluator(second)),
            narrow: (coarse && program.taps().iter().any(is_of_16_bits)).then(|| evaluator(Arithmetic::F64)),
            units,
        }
    }

    fn next_tap(&mut self) -> Option<usize> {
        let others = self.rounded.iter_mut().chain(&mut self.moved).chain(&mut self.narrow);
        others.for_each(|evaluator| {
            evaluator.next_tap();
        });
        self.exact.next_tap()
    }

    /// What is due at the tap that was reached, or why that is not known.
    fn due(&mut self, tap: usize) -> Result<Result<Due, String>, EvaluateError> {
        let Some(exact) = self.exact.value(tap)?.map(|value| array(&value)) else {
            return Ok(Err(self.exact.why(tap).map_or_else(String::new, ToString::to_string)));
        };
        let of = |evaluator: Option<&mut Evaluator<'_>>| -> Result<Option<ArrayD<f64>>, EvaluateError> {
            let Some(evaluator) = evaluator else { return Ok(None) };
            Ok(evaluator.value(tap)?.map(|value| array(&value)).filter(|value| value.shape() == exact.shape()))
        };
        let is_rounded = self.rounded.is_some();
        let right = match of(self.rounded.as_mut())? {
            Some(right) => right,
            // Its values take it another way: nothing is due in this arithmetic.
            None if is_rounded => {
                let why = self.rounded.as_ref().and_then(|rounded| rounded.why(tap)).map(ToString::to_string);
                return Ok(Err(why.unwrap_or_else(|| "rounding decides how many rows it has".to_owned())));
            }
            None => exact.clone(),
        };
        let moved = of(self.moved.as_mut())?;
        let narrow = of(self.narrow.as_mut())?;
        Ok(Ok(Due { right, exact, moved, narrow, choices: self.choices(tap) }))
    }

    /// Whether the tap that was reached is off by no more than f32 makes of 1 + erf(x): of large negative numbers GELU leaves less than that.
    fn is_beside_one(&self, tap: usize, own: &ArrayD<f64>, exact: &ArrayD<f64>) -> bool {
        let op = &self.program.ops()[self.program.taps()[tap].op];
        let is_gelu = op.base() == GELU;
        let input = op.operands.first().filter(|_| is_gelu).and_then(|input| self.exact.operand(input));
        let Some(input) = input.map(|input| array(&input)).filter(|input| input.len() == own.len()) else {
            return false;
        };
        let mut all = own.iter().zip(exact).zip(&input);
        all.all(|((own, exact), x)| (own - exact).abs() <= BESIDE_ONE * x.abs())
    }

    /// What the tap that was reached is chosen from, where its operation says that.
    fn choices(&self, tap: usize) -> Option<ArrayD<f64>> {
        let op = &self.program.ops()[self.program.taps()[tap].op];
        let among = op.operands.first().filter(|_| op.name.starts_with("topk"));
        among.and_then(|among| self.exact.operand(among)).map(|value| array(&value))
    }

    /// The tokens that a choice sends elsewhere than the reference's.
    fn routing(&self, tap: usize, held: &Held, candidate: &Candidate<'_>) -> Result<Option<Routing>, ReplayError> {
        let view = &self.program.taps()[tap].view;
        let (own, place) = (held.readable(tap).filter(|_| view.dtype.kind() == Kind::Int), held.place(tap));
        // What follows from its scores by right operations is not what it chose.
        let Some(own) = own.filter(|_| held.get(tap).is_some()) else { return Ok(None) };
        let Some(reference) = candidate.values.reference(place)? else { return Ok(None) };
        let values = Values::from(reference.into_iter().map(|x| x as i64).collect::<Vec<_>>());
        let reference = Tensor::new(view.dtype, view.shape.clone(), values);
        let (among, unit) = (self.choices(tap), own_unit(candidate.profile));
        Ok(reference.and_then(|reference| routing(place, own, &reference, among.as_ref(), unit)))
    }

    /// Goes on with what the candidate holds, where anything can be computed from that.
    fn hold(&mut self, tap: usize, held: &Held) -> Result<(), EvaluateError> {
        let Some(own) = held.readable(tap) else { return self.keep(tap, held) };
        self.exact.hold(tap, own.view())?;
        for evaluator in self.rounded.iter_mut().chain(&mut self.narrow) {
            evaluator.hold(tap, own.view())?;
        }
        if let Some(evaluator) = &mut self.moved {
            let site = held.place(tap).tap.last_site();
            let other = self.units.get(&tap).map(|&unit| moved(own, unit, site));
            evaluator.hold(tap, other.unwrap_or_else(|| own.clone()))?;
        }
        Ok(())
    }

    /// Goes on with keys or values that were not recorded as they are read back from the cache.
    fn keep(&mut self, tap: usize, held: &Held) -> Result<(), EvaluateError> {
        if !held.is_kept(tap) {
            return Ok(());
        }
        for evaluator in
            [&mut self.exact].into_iter().chain(&mut self.rounded).chain(&mut self.moved).chain(&mut self.narrow)
        {
            let read_back = evaluator.value(tap)?.map(|value| held.read_back(&value));
            read_back.map_or(Ok(()), |value| evaluator.hold(tap, value))?;
        }
        Ok(())
    }

    /// What could not be carried out.
    fn warnings(&self) -> Vec<String> {
        let gaps = self.exact.gaps();
        let told = gaps
            .iter()
            .take(TOLD)
            .map(|gap| format!("{gap}: what reads it is held against the reference's own value, where that tells"));
        let more =
            (gaps.len() > TOLD).then(|| format!("{} further operations could not be carried out", gaps.len() - TOLD));
        told.chain(more).collect()
    }
}

/// Whether one row is off by more than its own size allows.
fn is_of_a_row(reason: &Reason) -> bool {
    matches!(reason, Reason::Differs(Difference::Row { .. }))
}

/// A tap of which a row is off: right, where all rows are but for those that nearly cancel, and these are within what their terms leave.
fn without_cancelling(
    condition: &Condition,
    operation: &Operation<'_>,
    [own, right, exact]: [&ArrayD<f64>; 3],
    judged: Replayed,
) -> Replayed {
    let rest = condition.rows_beyond(own, right, tolerance(operation.profile, 0.0));
    let of_rest = |all: &ArrayD<f64>| all.select(Axis(0), &rest);
    let is_right = rest.is_empty()
        || rest.len() < own.shape()[0]
            && operation.judged(&of_rest(own), &of_rest(right), &of_rest(exact)).report.status.agrees();
    rounded_if(is_right, judged)
}

/// A tap that is off by rounding, where that is so.
fn rounded_if(is_rounding: bool, judged: Replayed) -> Replayed {
    match is_rounding {
        true => {
            let report = TapReport { status: Status::Rounding, ..judged.report };
            Replayed { reason: None, report, ..judged }
        }
        false => judged,
    }
}

/// PyTorch's name of the operation.
const GELU: &str = "gelu";

/// How many operations without a value are told of one by one.
const TOLD: usize = 3;

/// Whether the program itself rounds a tap to 16 bits.
fn is_of_16_bits(tap: &ProgramTap) -> bool {
    matches!(tap.view.dtype, ProgramType::F16 | ProgramType::BF16)
}

/// The unit by which an arithmetic rounds its values.
pub(crate) fn own_unit(profile: Profile) -> f64 {
    match profile {
        Profile::Exact => 2f64.powi(-53),
        Profile::F32 | Profile::Ggml { .. } => 2f64.powi(-24),
        Profile::F16 => unit_of(DType::F16),
        Profile::Bf16 => unit_of(DType::BF16),
    }
}

fn unchecked(place: Place, op: String) -> Replayed {
    Replayed::of(TapReport::unchecked(place, op))
}

pub(crate) fn taps_of(held: &Held, taps: impl Iterator<Item = usize>) -> Vec<Tap> {
    taps.map(|tap| held.place(tap).tap).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The taps that a slice makes on the way, and that are not read as the candidate holds them.
pub(crate) fn between(program: &Program, held: &Held, slice: &Slice<'_>) -> Vec<Tap> {
    taps_of(held, on_the_way(program, slice).into_iter().filter(|&tap| held.readable(tap).is_none()))
}

/// The first of them where the candidate holds NaN or infinities.
fn no_numbers(program: &Program, held: &Held, slice: &Slice<'_>) -> Option<Tap> {
    let is_number = |tap: usize, own| can_be_read(held.place(tap).tap.last_site(), &array(own));
    let made = on_the_way(program, slice).into_iter();
    made.filter(|&tap| held.get(tap).is_some_and(|own| !is_number(tap, own))).map(|tap| held.place(tap).tap).next()
}

/// The taps that a slice makes on the way, by their index.
fn on_the_way(program: &Program, slice: &Slice<'_>) -> Vec<usize> {
    let ops: BTreeSet<usize> = slice.ops().collect();
    let made = program.taps().iter().enumerate().filter(|(_, tap)| ops.contains(&tap.op)).map(|(number, _)| number);
    made.filter(|&tap| tap != slice.target()).collect()
}

/// Whether a choice of the largest is right. Two that are as large but for rounding may be taken for each other, and in any order.
fn chosen(blank: Replayed, own: &ArrayD<f64>, due: &Due, unit: f64, is_moved: bool) -> Replayed {
    let with = |status: Status, reason: Option<Reason>| {
        let metrics =
            Metrics::measure_f64(due.exact.as_slice().unwrap_or_default(), own.as_slice().unwrap_or_default());
        let report = TapReport { status, metrics: Some(metrics), shape: own.shape().to_vec(), ..blank.report.clone() };
        Replayed { reason, ..Replayed::of(report) }
    };
    if *own == due.exact {
        return with(if is_moved { Status::Rounding } else { Status::Exact }, None);
    }
    let width = own.shape().last().copied().filter(|width| *width > 0).unwrap_or(1);
    if let Some(at) = own.iter().position(|x| x.fract() != 0.0) {
        return with(Status::Diverged, Some(Reason::NoChoice { row: at / width }));
    }
    let Some((row, margin)) = due.choices.as_ref().and_then(|choices| worst_choice(own, choices)) else {
        return with(Status::Unchecked, Some(Reason::OtherNumbers));
    };
    match margin <= CHOICE_ROOM * unit {
        true => with(Status::Rounding, None),
        false if margin.is_infinite() => with(Status::Diverged, Some(Reason::NoChoice { row })),
        false => with(Status::Diverged, Some(Reason::OtherChoice { row, margin })),
    }
}

/// The row whose choice is furthest below what it leaves, and by how much, as a share of the row's largest value.
fn worst_choice(own: &ArrayD<f64>, choices: &ArrayD<f64>) -> Option<(usize, f64)> {
    let (&width, &count) = (choices.shape().last()?, own.shape().last()?);
    if width == 0 || count == 0 || choices.len() / width != own.len() / count {
        return None;
    }
    let below = |(choices, own): (&[f64], &[f64])| {
        let is_one = |x: f64| x >= 0.0 && x < width as f64;
        let taken: BTreeSet<usize> = own.iter().copied().filter(|&x| is_one(x)).map(|x| x as usize).collect();
        if taken.len() < count {
            return Some(f64::INFINITY);
        }
        margin_of_best(choices, &taken).map(|margin| (-margin).max(0.0))
    };
    let rows = choices.as_slice()?.chunks(width).zip(own.as_slice()?.chunks(count));
    let all: Vec<f64> = rows.map(below).collect::<Option<_>>()?;
    all.into_iter().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}
