//! Finds taps that are only recorded wrongly: what reads such a tap was made of the right value, and no operation is to be blamed.
//!
//! A buffer that is written down too early or too late, or under another's name, is not what the engine went on with. What reads the tap tells: on
//! the value that the tap should have the candidate's own numbers come out, on the recorded one they do not.

use firstdiff_compare::{Place, Status};

use crate::explain::{Finding, Match};
use crate::replay::Replay;

/// What is said of wrong taps whose operations are not to be blamed, but for those `found` otherwise: those of one site together.
pub(crate) fn findings(replay: &Replay, found: &[Place]) -> Vec<Finding> {
    let mut out: Vec<Finding> = Vec::new();
    for tap in replay.taps.iter().filter(|t| t.report.status == Status::Diverged && !t.is_blamed()) {
        let place = tap.report.place;
        if found.contains(&place) {
            continue;
        }
        let nmse = tap.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
        let taken_back = !tap.taken_back.is_empty();
        let alike = |f: &Finding| f.taken_back.is_empty() != taken_back && f.taps[0].site == place.tap.site;
        let known = out.iter().position(alike);
        let at = known.unwrap_or_else(|| {
            let op = tap.report.op.clone();
            out.push(Finding { op, ..Finding::without_cause(Match::Unknown) });
            out.len() - 1
        });
        let finding = &mut out[at];
        if !finding.taps.contains(&place.tap) {
            finding.taps.push(place.tap);
        }
        finding.shown_at.push(place);
        finding.misrecorded.extend(&tap.misrecorded);
        let readers: Vec<Place> =
            tap.taken_back.iter().copied().filter(|reader| !finding.taken_back.contains(reader)).collect();
        finding.taken_back.extend(readers);
        finding.base_nmse = finding.base_nmse.max(nmse);
        finding.residual_nmse = finding.base_nmse;
        finding.note = Some(match taken_back {
            true => self::taken_back(&finding.taken_back),
            false => words(&finding.misrecorded),
        });
    }
    out
}

/// Why no operation is blamed, in words.
pub fn words(readers: &[Place]) -> String {
    let (who, many) = listed(readers);
    format!(
        "{who} come{} out right of the value that is due here, and not of the recorded one: the operation is not to be blamed yet; look at what \
         is recorded under this name, and when (another buffer, too early, too late, or a factor that what reads it takes back)",
        if many { "" } else { "s" }
    )
}

/// The first of them and how many more, and whether there are several.
pub(crate) fn listed(readers: &[Place]) -> (String, bool) {
    let first = readers.first().map_or_else(String::new, ToString::to_string);
    match readers.len() {
        0 | 1 => (first, false),
        n => (format!("{first} and {} more", n - 1), true),
    }
}

/// Why no operation is blamed where a later one takes back what is off, in words.
pub fn taken_back(readers: &[Place]) -> String {
    let (who, many) = listed(readers);
    format!(
        "{who} take{} back what is off here, and {} right by what stands before it: where that is a factor in another place, nothing is to be changed",
        if many { "" } else { "s" },
        if many { "are" } else { "is" },
    )
}
