//! Does a run hold what all experts of a layer made in one tensor, or an expert's rows otherwise than the reference does? Then each expert's rows are
//! taken out, in the reference's order, as the choice of experts that the run itself recorded says where they stand.
//!
//! Here no row is looked for by its values. These only say in which of a few forms a run writes, the same in all layers and steps: a form is taken where rows are
//! near the reference's that every other form leaves far off. Below a fault none is near. There replay decides by what the run's own values
//! give (`ExpertRows` says what there is to decide between). Where nothing decides, or the choice was not recorded, nothing is taken.

mod choice;
mod evidence;
mod form;
mod rows;
mod source;
mod votes;

use firstdiff_trace::{Dump, DumpError, Entry, Rows};

use crate::experts::form::Reading;
pub use crate::experts::rows::{ExpertPiece, ExpertRows, SiteRows, rights};
use crate::experts::source::{Held, expert_tap};
pub use crate::experts::votes::{Right, RowVotes, row_distance};

/// Puts a tap for each expert, as `reference` has it, in the place of what `candidate` holds of all experts in another form, and says what was taken.
///
/// # Errors
/// When a tensor cannot be read.
pub fn split_experts(reference: &Dump, candidate: &mut Dump) -> Result<ExpertRows, DumpError> {
    let mut rows = ExpertRows::of(reference, candidate)?;
    let mut notes = Vec::new();
    for site in &rows.sites {
        match site.taken() {
            Some(reading) => {
                notes.extend(site.note(reading));
                take(candidate, site, &site.readings[reading])?;
            }
            None if site.is_of_all_experts() => notes.push(site.not_read()),
            // As it stands.
            None => {}
        }
    }
    rows.notes = notes;
    Ok(rows)
}

/// Each expert's rows, in the reference's order, in place of what the candidate holds.
fn take(candidate: &mut Dump, site: &SiteRows, reading: &Reading) -> Result<(), DumpError> {
    if reading.is_as_it_stands {
        return Ok(());
    }
    let (wanted, held) = (&site.wanted, &site.held);
    let mut entries = Vec::new();
    for (block, pieces) in &reading.pieces {
        for (&expert, piece) in pieces.iter().filter(|(_, piece)| !piece.rows.is_empty()) {
            let Some(source) = held.source(block, expert) else { continue };
            let tensor = candidate.read(source)?;
            let (rows, path, given) = (piece.rows.clone(), candidate.path().to_owned(), source.tap);
            let shape: Vec<usize> = [rows.len()].into_iter().chain(wanted.row.iter().copied()).collect();
            let (tap, step, dtype, made) =
                (expert_tap(block, expert, &wanted.site), block.step, source.dtype, shape.clone());
            let make = move || {
                tensor.rows(&rows, made.clone()).ok_or_else(|| DumpError::NotADump {
                    path: path.clone(),
                    reason: format!("{given} does not hold the rows of all experts"),
                })
            };
            entries.push(Entry::computed(tap, step, shape, dtype, piece.positions.clone().map(Rows::List), make));
        }
    }
    let mut without = Vec::new();
    if let Held::Together(all) = held {
        without.extend(all.keys().map(|block| (Held::together_name(block, &wanted.site), block.step)));
    }
    candidate.set_open_tensors(entries, &without);
    Ok(())
}
