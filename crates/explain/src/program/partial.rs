//! Judges what stands behind taps of which some positions are held, and are wrong: with the mistakes that were found there, it can be computed.

use firstdiff_compare::TapReport;
use firstdiff_program::{Edit, Program};

use crate::explain::Progress;
use crate::program::search::{Explained, Search};
use crate::program::slices::stretch;
use crate::replay::reason::{Reason, UnfitInput};
use crate::replay::{Replay, Replayed};

/// A tap of the replay, and how it is judged.
pub(super) type Judged = (usize, Replayed);

/// Judges those taps: right where the mistakes that were found before them give the candidate's numbers; else the same mistakes, wherever else they may be
/// made, are tried. What nothing gives stays as it was.
pub(super) fn judge(search: &mut Search<'_>, explained: &mut Vec<Explained>, progress: Progress<'_>) -> Vec<Judged> {
    let replays = search.replays;
    let is_behind = |reason: &Reason| matches!(reason, Reason::Input { why: UnfitInput::Partial, .. });
    let taps = replays.replay.taps.iter().zip(&replays.taps).enumerate();
    let behind: Vec<(usize, usize)> =
        taps.filter(|(_, (t, _))| t.is_for(is_behind)).map(|(at, (_, tap))| (at, *tap)).collect();
    let mut judged = Vec::new();
    for (done, &(at, tap)) in behind.iter().enumerate() {
        progress(&search.held.place(tap).to_string(), done, behind.len());
        let slice = search.held.slice(search.recording.program, tap);
        if search.exact.load(&slice).is_err() {
            continue;
        }
        let report = search.report_with(&slice, &accepted(search.recording.program, explained));
        let is_right = report.as_ref().is_some_and(|report| report.status.agrees());
        let again = if is_right { None } else { search.explained(tap, explained) };
        let again = again.filter(|again| !again.reproduced.is_empty());
        if let Some(report) = report.filter(|_| is_right || again.is_some()) {
            let stretch = if is_right { None } else { stretch(search.recording.program, &slice) };
            let own = &replays.replay.taps[at];
            let (from, through, takes_up) = (own.from.clone(), own.through.clone(), own.takes_up);
            let report = TapReport { positions: own.report.positions.clone(), ..report };
            judged.push((at, Replayed { from, through, takes_up, stretch, ..Replayed::of(report) }));
        }
        explained.extend(again);
    }
    judged
}

/// The mistakes that were found, where they were made.
fn accepted(program: &Program, explained: &[Explained]) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    let found = explained.iter().filter_map(|explained| explained.reproduced.first());
    for edit in found.flat_map(|found| found.forms()).flat_map(|form| &form.edits) {
        if edits.iter().all(|known| known.is_beside(edit, program)) {
            edits.push(edit.clone());
        }
    }
    edits
}

/// Takes up how taps are judged.
pub(super) fn take_up(replay: &mut Replay, judged: Vec<Judged>) {
    for (at, tap) in judged {
        replay.taps[at] = tap;
    }
}
