//! Takes each expert's rows out of tensors that hold them in another form than the reference: all experts of a layer in one tensor, or another order. The
//! choice of experts that the run itself recorded says where they are.
//!
//! No row is searched by its values. Values only decide between a few forms, the same in all layers and steps: a form is taken where rows are near the
//! reference's and every other form leaves them far off. Behind a fault no row is near; there replay decides by the run's own values ([`ExpertRows`] holds
//! the forms to decide between). Where nothing decides, or the choice was not recorded, nothing is taken.

mod choice;
mod evidence;
mod form;
mod rows;
mod source;
mod votes;

use firstdiff_trace::{Dump, DumpError, Entry, Rows};

use crate::experts::form::RowReading;
pub use crate::experts::rows::{ExpertPiece, ExpertRows, SiteRows, right_readings};
use crate::experts::source::{CandidateSite, expert_tap};
pub use crate::experts::votes::{RightReading, RowVotes, row_distance};

/// Replaces what `candidate` holds of all experts in another form by a tap for each expert, as `reference` has it, and returns what was taken.
///
/// # Errors
/// When a tensor cannot be read.
pub fn split_experts(reference: &Dump, candidate: &mut Dump) -> Result<ExpertRows, DumpError> {
    let mut rows = ExpertRows::find(reference, candidate)?;
    let mut notes = Vec::new();
    for site in &rows.sites {
        match site.reading_taken() {
            Some(reading) => {
                notes.extend(site.note(reading));
                replace_expert_rows(candidate, site, &site.readings[reading])?;
            }
            None if site.is_of_all_experts() => notes.push(site.unread_notes()),
            // Left unchanged.
            None => {}
        }
    }
    rows.notes = notes;
    Ok(rows)
}

/// Replaces the candidate's tensors by one tensor for each expert, with its rows in the reference's order.
fn replace_expert_rows(candidate: &mut Dump, site: &SiteRows, reading: &RowReading) -> Result<(), DumpError> {
    if reading.is_as_it_stands {
        return Ok(());
    }
    let (wanted, held) = (&site.reference_site, &site.candidate_site);
    let mut entries = Vec::new();
    for (block, pieces) in &reading.pieces {
        for (&expert, piece) in pieces.iter().filter(|(_, piece)| !piece.rows.is_empty()) {
            let Some(source) = held.source(block, expert) else { continue };
            let tensor = candidate.read(source)?;
            let (rows, path, given) = (piece.rows.clone(), candidate.path().to_owned(), source.tap);
            let shape: Vec<usize> = [rows.len()].into_iter().chain(wanted.row.iter().copied()).collect();
            let (tap, step, dtype, out_shape) =
                (expert_tap(block, expert, &wanted.site), block.step, source.dtype, shape.clone());
            let make = move || {
                tensor.rows(&rows, out_shape.clone()).ok_or_else(|| DumpError::NotADump {
                    path: path.clone(),
                    reason: format!("{given} does not hold the rows of all experts"),
                })
            };
            entries.push(Entry::computed(tap, step, shape, dtype, piece.positions.clone().map(Rows::List), make));
        }
    }
    let mut without = Vec::new();
    if let CandidateSite::Together(all) = held {
        without.extend(all.keys().map(|block| (CandidateSite::joint_name(block, &wanted.site), block.step)));
    }
    candidate.set_open_tensors(entries, &without);
    Ok(())
}
