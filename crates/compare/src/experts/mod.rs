//! Does a run hold what all experts of a layer made in one tensor, or an expert's rows otherwise than the reference does? Then each expert's rows are
//! taken out, in the reference's order, as the choice of experts that the run itself recorded says where they stand.
//!
//! Here no row is looked for by its values. These only say in which of a few forms a run writes, the same in all layers and steps: a form is taken where it leaves
//! far less than every other one of the rows that the two read differently. Where none does, or the choice was not recorded, nothing is taken.

mod choice;
mod evidence;
mod form;
mod source;

use firstdiff_trace::{Dump, DumpError, Entry, Rows};

use crate::experts::choice::Choices;
use crate::experts::evidence::likely;
use crate::experts::form::Reading;
use crate::experts::source::{Held, Wanted, expert_tap};

/// Puts a tap for each expert, as `reference` has it, in the place of what `candidate` holds of all experts in another form, and notes it.
///
/// # Errors
/// When a tensor cannot be read.
pub fn split_experts(reference: &Dump, candidate: &mut Dump) -> Result<(), DumpError> {
    for wanted in Wanted::all(reference) {
        let Some(held) = Held::of(&wanted, candidate) else { continue };
        let choices = Choices::of(reference, candidate, &wanted)?;
        let readings = Reading::all(&wanted, &held, &choices);
        let reading = likely([reference, candidate], &wanted, &held, &choices, &readings)?;
        match (reading, &held) {
            (Some(reading), _) => take(candidate, &wanted, &held, reading)?,
            // As it stands.
            (None, Held::ByExpert(_)) => {}
            (None, Held::Together(all)) => {
                let why = match (readings.is_empty(), choices.know_all(all.keys())) {
                    (_, false) => {
                        "router_topk of its layer and step, which says whose rows are whose, was not recorded"
                    }
                    (true, true) => "its shape is none that router_topk of its layer and step gives it",
                    (false, true) => "nothing shows in which of several orders its rows stand",
                };
                candidate
                    .note(format!("not read: {}, which holds rows of all experts: {why}", held.first_name(&wanted)));
            }
        }
    }
    Ok(())
}

/// Each expert's rows, in the reference's order, in place of what the candidate holds.
fn take(candidate: &mut Dump, wanted: &Wanted, held: &Held, reading: &Reading) -> Result<(), DumpError> {
    if reading.is_as_it_stands {
        return Ok(());
    }
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
            entries.push(Entry::made(tap, step, shape, dtype, piece.positions.clone().map(Rows::List), make));
        }
    }
    let (first, form, mut without) = (held.first_name(wanted), reading.form.words(), Vec::new());
    candidate.note(match held {
        Held::Together(all) => {
            without.extend(all.keys().map(|block| (Held::together_name(block, &wanted.site), block.step)));
            let hold = if all.len() > 1 { format!("and {} more hold", all.len() - 1) } else { "holds".to_owned() };
            format!("{first} {hold} the rows of all experts, {form}: those of each were taken by router_topk")
        }
        Held::ByExpert(_) => {
            format!("{first} and others hold {form}, and the reference does not: its rows were taken by router_topk")
        }
    });
    candidate.put_open(entries, &without);
    Ok(())
}
