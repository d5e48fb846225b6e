//! Explains a program's wrong slices: each is carried out otherwise, until the candidate's own numbers come out.

use std::time::Instant;

use firstdiff_compare::{Place, SeenPadding};
use firstdiff_trace::Tap;

use crate::explain::finding::{other_counts, unmasked_padding};
use crate::explain::findings::{exchange_gate_and_up, join_named, of_no_known_positions, seen_once, show_nothing};
use crate::explain::{A_MOMENT, Effort, Explanation, Progress, misrecorded, moved_alike};
use crate::mistakes::precision::PRECISION;
use crate::program::arithmetic::{another, stored};
use crate::program::findings::{self, say_where};
use crate::program::not_testable::not_testable;
use crate::program::replays::ProgramReplay;
use crate::program::search::{Explained, Search};
use crate::program::{CacheSaidBy, Candidate, Recording, partial};
use crate::replay::operation::is_coarse;
use crate::replay::{ReplayError, Replayed};

/// Replays a candidate, and looks for what is done otherwise where it goes wrong.
///
/// # Errors
/// As [`replay`](crate::program::replay()).
pub fn explain(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    let begun = Instant::now();
    let mut judged = ProgramReplay::run(recording, candidate, &mut |done, total| progress("replay", done, total))?;
    let tries_other = || effort.tries(&PRECISION) && !(effort.quick && begun.elapsed() > A_MOMENT);
    let (mut profile, mut as_declared) = (candidate.profile, None);
    if tries_other()
        && let Some(other) = stored(&judged.recording(recording), candidate, (&judged.held, &judged.replays), progress)?
    {
        let declared = std::mem::replace(&mut judged, other.judged);
        (profile, as_declared) = (other.profile, Some((declared.replays.replay, other.finding)));
    }
    let candidate = &Candidate { profile, ..*candidate };
    let other = judged.other_arithmetic(recording, candidate, effort);
    let (recording, held, replays) = (&judged.recording(recording), &judged.held, &judged.replays);
    let candidate = &Candidate { cache: (judged.cache, CacheSaidBy::Word), ..*candidate };
    if tries_other()
        && let Some(finding) = another(recording, candidate, held, replays, progress)?
    {
        return Ok(Explanation { replay: judged.replays.replay, findings: vec![finding], not_testable: Vec::new() });
    }
    let moves = moved_alike::moves(effort);
    let mut search = Search::new((recording, candidate), held, replays, effort);
    let mut explained: Vec<Explained> = Vec::new();
    let sees_padding =
        |place: Place| candidate.padding.iter().flat_map(SeenPadding::places).any(|other| other == place);
    let is_blamed = |tap: &usize| {
        let place = held.place(*tap);
        let is_rounded =
            other.iter().filter(|other| other.nearest.is_some()).any(|other| other.places.contains(&place));
        !is_rounded && !sees_padding(place) && replays.of(place).is_some_and(Replayed::is_blamed)
    };
    let wrong: Vec<usize> = replays.wrong().filter(is_blamed).collect();
    for (done, &tap) in wrong.iter().enumerate() {
        progress(&held.place(tap).to_string(), done, wrong.len());
        explained.extend(search.explained(tap, &explained));
        search.unexplained.extend(explained.last().filter(|e| e.reproduced.is_empty()).map(|e| e.tap));
    }
    let judged_behind = if effort.quick { Vec::new() } else { partial::judge(&mut search, &mut explained, progress) };
    // What was found behind a tap may be what is wrong at it.
    search.is_second_look = true;
    for at in 0..explained.len() {
        if explained[at].reproduced.is_empty()
            && let Some(again) = search.explained(explained[at].tap, &explained)
            && !again.reproduced.is_empty()
        {
            explained[at] = again;
        }
    }
    // Where rounding hides what is made of it, a tap is not taken back that a mistake gives which was found at others.
    let mut also: Vec<Place> = Vec::new();
    if is_coarse(candidate.profile) {
        let is_taken_back = |tap: &usize| replays.of(held.place(*tap)).is_some_and(|it| !it.taken_back.is_empty());
        let found = search.found_at(replays.wrong().filter(is_taken_back), &explained);
        also.extend(found.iter().map(|found| held.place(found.tap)));
        explained.extend(found);
    }
    let mut findings = findings::findings(&search, &explained);
    show_nothing(&mut findings);
    exchange_gate_and_up(&mut findings);
    let is_recorded =
        |place| (0..recording.program.taps().len()).any(|tap| held.place(tap) == place && held.is_recorded(tap));
    seen_once(&mut findings, is_recorded);
    let order = |tap: Tap| (0..recording.program.taps().len()).find(|&at| held.place(at).tap == tap);
    let order = |tap: Tap| order(tap).unwrap_or(usize::MAX);
    findings.extend(unmasked_padding(candidate.padding));
    findings.extend(other_counts(&replays.replay));
    let mut not_blamed = misrecorded::findings(&replays.replay, &also);
    let moved = search.moved_alike(&moves);
    moved_alike::take_up(findings::findings(&search, &moved), &mut not_blamed);
    if !not_blamed.is_empty() {
        findings.extend(not_blamed);
        findings.sort_by_key(|f| f.taps.first().map_or(usize::MAX, |&tap| order(tap)));
    }
    if let Some(other) = other {
        other.take_up(&mut findings, &replays.replay);
    }
    if !effort.quick {
        crate::program::laws::measure((recording, candidate, held), &replays.replay, effort, &mut findings, progress);
        join_named(&mut findings, order);
    }
    if !candidate.are_tokens_known {
        of_no_known_positions(&mut findings);
    }
    let not_testable = if effort.quick { Vec::new() } else { not_testable(&mut search, &findings) };
    partial::take_up(&mut judged.replays.replay, judged_behind);
    say_where(&judged.replays.replay, &mut findings);
    let mut replay = judged.replays.replay;
    let found = replay.taps.iter_mut().filter(|replayed| also.contains(&replayed.report.place));
    found.for_each(|replayed| replayed.taken_back.clear());
    if let Some((declared, finding)) = as_declared {
        findings.insert(0, finding);
        replay = declared;
    }
    Ok(Explanation { replay, findings, not_testable })
}
