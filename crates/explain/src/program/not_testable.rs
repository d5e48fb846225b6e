//! Lists the mistakes that the recordings could not have shown: those that change nothing in the operations that are right, and those of steps and of tokens that
//! the candidate does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use firstdiff_program::{Edit, Slice};
use firstdiff_trace::Site;
use ndarray::ArrayD;

use crate::explain::Finding;
use crate::mistakes::Mistake;
use crate::mistakes::attention::{KV_CACHE_SHIFT, KV_CACHE_STALE};
use crate::mistakes::rope::OF_TABLES;
use crate::mistakes::scores::{MASK_AFTER_SOFTMAX, MASK_OMITTED, WINDOW_SIZE};
use crate::program::form::{Form, Tune};
use crate::program::forms::{forms, sees_the_past_alone, turns, window};
use crate::program::search::Search;
use crate::program::slices::reads_large;

/// Whether each id shows where it could have been made.
type Seen = BTreeMap<&'static str, bool>;

/// Ids that would have changed nothing, or no more than rounding, wherever they could have been made: what is wrong, or was not looked at for its size, might
/// have shown them. None where there is no time to look everywhere.
pub(super) fn not_testable(search: &mut Search<'_>, findings: &[Finding]) -> Vec<String> {
    let begun = Instant::now();
    let is_late = |search: &Search<'_>| begun.elapsed().as_secs_f64() > search.effort.seconds;
    let (program, held) = (search.recording.program, search.held);
    let taps = program.taps();
    let mut seen = Seen::new();
    // Operations that what was recorded is made of.
    let mut made: BTreeSet<usize> = BTreeSet::new();
    let mut judged: Vec<usize> = Vec::new();
    for tap in (0..taps.len()).filter(|&tap| held.is_recorded(tap)) {
        made.extend(held.slice(program, tap).ops());
        judged.push(tap);
    }
    // One line of code is alike in all layers: first its first tap of the prompt, and of the last step.
    let last = judged.iter().map(|&tap| taps[tap].step).max().unwrap_or(0);
    let mut kinds = BTreeSet::new();
    let is_first = |&tap: &usize| {
        let step = taps[tap].step;
        (step == 0 || step == last) && kinds.insert((program.class(taps[tap].op), held.place(tap).tap.site, step))
    };
    let (firsts, others): (Vec<usize>, Vec<usize>) = judged.into_iter().partition(is_first);
    let kind = |tap: usize| (program.class(taps[tap].op), held.place(tap).tap.site);
    // Which ids each line of code may show.
    let mut shown_in: BTreeMap<(usize, Site), BTreeSet<&'static str>> = BTreeMap::new();
    let count = firsts.len();
    let reads_a_cache = last > 0 || search.candidate.recorded.entries().iter().any(|entry| entry.step > 0);
    for (at, tap) in firsts.into_iter().chain(others).enumerate() {
        let is_open = |id: &&'static str| seen.get(*id) == Some(&false);
        if at < count || shown_in.get(&kind(tap)).is_none_or(|ids| ids.iter().any(is_open)) {
            let ids = shown_by(search, tap, reads_a_cache, &mut seen);
            shown_in.entry(kind(tap)).or_default().extend(ids);
        }
        if is_late(search) {
            return Vec::new();
        }
    }
    // What only steps do that were not recorded.
    let mut kinds = BTreeSet::new();
    for tap in (0..taps.len()).filter(|&tap| !held.is_recorded(tap) && !made.contains(&taps[tap].op)) {
        if kinds.insert((program.class(taps[tap].op), held.place(tap).tap.site)) {
            let slice = Slice::of(program, tap, |other| other != tap);
            let context = search.context(&slice, ArrayD::zeros(taps[tap].view.shape.as_slice()));
            for form in forms(&context).iter().filter(|form| counts(form) && form.tune.is_none()) {
                seen.entry(form.mistake.id).or_insert(false);
            }
        }
    }
    if search.candidate.is_padded {
        seen.insert(MASK_OMITTED.id, true);
    }
    let found = |id: &str| findings.iter().any(|f| f.cause.as_ref().is_some_and(|cause| cause.id == id));
    seen.into_iter().filter(|(id, shows)| !shows && !found(id)).map(|(id, _)| id.to_owned()).collect()
}

/// Whether it is a form by which this can be told. A window of any length shows, but not one that is longer than all tokens; a mask behind the softmax shows
/// where one that is left out does.
fn counts(form: &Form) -> bool {
    let is_told_otherwise = [&WINDOW_SIZE, &MASK_AFTER_SOFTMAX].contains(&form.mistake);
    !form.mistake.is_another_arithmetic && !is_told_otherwise
}

/// What a form does otherwise; with another number, where any may be.
fn edits(form: &Form) -> Vec<Edit> {
    let another = |tune: &Tune| (tune.with)(if tune.right == 0.0 { 1.0 } else { 2.0 * tune.right });
    form.tune.as_ref().map_or_else(|| form.edits.clone(), another)
}

/// Notes which mistakes would show, or might, in what was recorded of a tap, and returns all that can be made there.
fn shown_by(search: &mut Search<'_>, tap: usize, reads_a_cache: bool, seen: &mut Seen) -> BTreeSet<&'static str> {
    let (program, held) = (search.recording.program, search.held);
    let Some(replayed) = search.replays.of(held.place(tap)) else { return BTreeSet::new() };
    let slice = held.slice(program, tap);
    // Another choice than the one that was taken for the candidate's may show.
    let is_supposed = slice.known().any(|known| held.get(known).is_none() && held.part(known).is_none());
    let might = is_supposed || !replayed.report.status.agrees() || reads_large(program, &slice);
    if !might && search.exact.load(&slice).is_err() {
        return BTreeSet::new();
    }
    let Some(own) = search.whole(&slice) else { return BTreeSet::new() };
    let context = search.context(&slice, own);
    let step = program.taps()[tap].step;
    for op in context.ops() {
        if turns(&context, op) {
            // At position 0 nothing is turned.
            let shows = step > 0 || program.steps().get(step).is_some_and(|step| step.tokens > 1);
            OF_TABLES.into_iter().for_each(|mistake| *seen.entry(mistake.id).or_insert(false) |= shows);
        }
        // A mask of one token hides nothing, and may not be there.
        let is_of_one = context.is_attention_softmax(op) && program.steps().get(step).is_some_and(|s| s.tokens == 1);
        if is_of_one || sees_the_past_alone(&context, op) {
            let of_a_cache: &[&Mistake] = if reads_a_cache { &[] } else { &[&KV_CACHE_STALE, &KV_CACHE_SHIFT] };
            for mistake in of_a_cache.iter().chain(&[&MASK_OMITTED]) {
                seen.entry(mistake.id).or_insert(false);
            }
        }
        if let Some(shows) = window(&context, op) {
            *seen.entry(WINDOW_SIZE.id).or_insert(false) |= shows;
        }
    }
    let all: Vec<Form> = forms(&context).into_iter().filter(counts).collect();
    for form in all.iter().filter(|form| search.effort.allows(form.mistake)) {
        let is_shown = seen.get(form.mistake.id) == Some(&true);
        // What cannot be carried out may show. One number that shows nothing does not speak for all.
        let shows = is_shown || might || search.agrees_with(&slice, &edits(form)) != Some(true);
        if shows || form.tune.is_none() {
            seen.insert(form.mistake.id, shows);
        }
    }
    all.iter().map(|form| form.mistake.id).collect()
}
